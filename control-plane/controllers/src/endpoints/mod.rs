//! EndpointSlices and Endpoints: where the pods of a Service answer.
//!
//! [`model`] turns a Service and its pods into endpoints, [`slices`] spreads them over slices with the fewest changes,
//! [`legacy`] makes the old Endpoints object; all pure. [`shell`] reads caches and acts.
//!
//! Invariants (property-tested in [`slices`]): the slices hold exactly the endpoints wanted, no slice has more than 100,
//! a second pass changes nothing, and an endpoint that stays is never moved to another slice.
//!
//! Upstream counterpart: `pkg/controller/endpointslice`, `pkg/controller/endpoint`.

pub mod legacy;
pub mod model;
pub mod shell;
pub mod slices;
