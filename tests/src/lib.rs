//! Harness of the black-box suites: a real lab of the built programs, driven as a person would drive it.
//!
//! Nothing in here is a stand-in: clusters come from the `lab` program, requests from a real kubectl or from sockets in
//! the right network namespace.

pub mod api;
pub mod faulty;
pub mod inventory;
pub mod lab;
pub mod load;
pub mod manifests;
pub mod net;
pub mod objects;
pub mod process;
pub mod results;
pub mod runtime;
pub mod snapshot;
pub mod suite;
