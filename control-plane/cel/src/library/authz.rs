//! Authorization checks: `authorizer.group('apps').resource('deployments').namespace('x').check('create').allowed()`.
//!
//! The decision is the caller's, through [`Authorizer`]. Upstream counterpart: `apiserver/pkg/cel/library/authz.go`.

use std::sync::Arc;

use cel::ExecutionError;
use cel::common::types::STRING_TYPE;
use cel::common::value::{CowVal, Val};

use kube_common::names;

use super::{Args, Out, Registry, arg, failed, out_bool, out_text, text};
use crate::budget::charge;
use crate::value::opaque::opaque;

/// What one check costs (upstream's `actualCost` of an authorizer check).
const CHECK_COST: u64 = 350_000;

/// Decides what an expression asks; the request's user is known to the implementation.
pub trait Authorizer: std::fmt::Debug + Send + Sync {
    /// Whether the check's user may do it. It is called while the expression is evaluated, so it should not wait.
    fn authorize(&self, check: &Check) -> Decision;
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account that is asked about, instead of the request's user.
    pub service_account: Option<(String, String)>,
    /// The verb.
    pub verb: String,
    /// What the verb is done to.
    pub target: Target,
}

/// What a verb is done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path that is not a resource's.
    Path(String),
    /// A resource.
    Resource(ResourceTarget),
}

impl Default for Target {
    fn default() -> Self {
        Self::Resource(ResourceTarget::default())
    }
}

/// A resource, or one object of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceTarget {
    /// API group.
    pub group: String,
    /// Plural name.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object, or empty.
    pub name: String,
    /// Field selector as it was written, or empty.
    pub field_selector: String,
    /// Label selector as it was written, or empty.
    pub label_selector: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The reason, or empty.
    pub reason: String,
    /// Why the decision failed, if it did.
    pub error: Option<String>,
}

/// The authorizer with the check that was said so far.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    authorizer: Arc<dyn Authorizer>,
    check: Check,
}

impl PartialEq for Asking {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.authorizer, &other.authorizer) && self.check == other.check
    }
}

opaque!(
    /// The variable `authorizer`.
    AuthorizerVal(Asking), AUTHORIZER, "kubernetes.authorization.Authorizer"
);
opaque!(
    /// A path to check.
    PathVal(Asking), PATH, "kubernetes.authorization.PathCheck"
);
opaque!(
    /// A group whose resource comes next.
    GroupVal(Asking), GROUP, "kubernetes.authorization.GroupCheck"
);
opaque!(
    /// A resource to check.
    ResourceVal(Asking), RESOURCE, "kubernetes.authorization.ResourceCheck"
);
opaque!(
    /// A decision.
    DecisionVal(Decision), DECISION, "kubernetes.authorization.Decision"
);

/// The value of `authorizer`.
pub(crate) fn authorizer_value(authorizer: Arc<dyn Authorizer>) -> Box<dyn Val> {
    Box::new(AuthorizerVal(Asking { authorizer, check: Check::default() }))
}

/// The value of `authorizer.requestResource`.
pub(crate) fn resource_value(authorizer: Arc<dyn Authorizer>, resource: ResourceTarget) -> Box<dyn Val> {
    let check = Check { target: Target::Resource(resource), ..Check::default() };
    Box::new(ResourceVal(Asking { authorizer, check }))
}

pub(super) fn register(registry: &mut Registry) {
    for named in [&AUTHORIZER, &PATH, &GROUP, &RESOURCE, &DECISION] {
        registry.named_type(named);
    }
    let one = [&STRING_TYPE];
    registry.member("path", &AUTHORIZER, &one, |args| {
        let path = text(&args, 1)?;
        if path.trim().is_empty() {
            return Err(failed("path must not be empty"));
        }
        let mut asking = arg::<AuthorizerVal>(&args, 0)?.0.clone();
        asking.check.target = Target::Path(path.to_owned());
        Ok(CowVal::owned(PathVal(asking)))
    });
    registry.member("serviceAccount", &AUTHORIZER, &[&STRING_TYPE, &STRING_TYPE], service_account);
    registry.member("group", &AUTHORIZER, &one, |args| {
        let group = ResourceTarget { group: text(&args, 1)?.to_owned(), ..ResourceTarget::default() };
        let mut asking = arg::<AuthorizerVal>(&args, 0)?.0.clone();
        asking.check.target = Target::Resource(group);
        Ok(CowVal::owned(GroupVal(asking)))
    });
    registry.member("resource", &GROUP, &one, |args| {
        let resource = text(&args, 1)?;
        if resource.trim().is_empty() {
            return Err(failed("resource must not be empty"));
        }
        with(arg::<GroupVal>(&args, 0)?.0.clone(), |target| target.resource = resource.to_owned())
    });
    register_narrowing(registry);
    registry.member("check", &PATH, &one, |args| check(&arg::<PathVal>(&args, 0)?.0, text(&args, 1)?));
    registry.member("check", &RESOURCE, &one, |args| check(&arg::<ResourceVal>(&args, 0)?.0, text(&args, 1)?));
    registry.member("allowed", &DECISION, &[], |args| out_bool(decision(&args)?.allowed));
    registry.member("reason", &DECISION, &[], |args| out_text(decision(&args)?.reason.as_str()));
    registry.member("errored", &DECISION, &[], |args| out_bool(decision(&args)?.error.is_some()));
    registry.member("error", &DECISION, &[], |args| out_text(decision(&args)?.error.clone().unwrap_or_default()));
}

fn register_narrowing(registry: &mut Registry) {
    let one = [&STRING_TYPE];
    registry.member("subresource", &RESOURCE, &one, |args| narrowed(&args, |target, text| target.subresource = text));
    registry.member("namespace", &RESOURCE, &one, |args| narrowed(&args, |target, text| target.namespace = text));
    registry.member("name", &RESOURCE, &one, |args| narrowed(&args, |target, text| target.name = text));
    registry
        .member("fieldSelector", &RESOURCE, &one, |args| narrowed(&args, |target, text| target.field_selector = text));
    registry
        .member("labelSelector", &RESOURCE, &one, |args| narrowed(&args, |target, text| target.label_selector = text));
}

fn with<'b, 'v>(mut asking: Asking, change: impl FnOnce(&mut ResourceTarget)) -> Out<'b, 'v> {
    if let Target::Resource(target) = &mut asking.check.target {
        change(target);
    }
    Ok(CowVal::owned(ResourceVal(asking)))
}

fn narrowed<'b, 'v>(args: &Args<'_, '_>, change: fn(&mut ResourceTarget, String)) -> Out<'b, 'v> {
    let value = text(args, 1)?.to_owned();
    with(arg::<ResourceVal>(args, 0)?.0.clone(), |target| change(target, value))
}

fn service_account<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let (namespace, name) = (text(&args, 1)?, text(&args, 2)?);
    if !names::dns1123_subdomain(name).is_empty() {
        return Err(failed("Invalid service account name"));
    }
    if !names::dns1123_label(namespace).is_empty() {
        return Err(failed("Invalid service account namespace"));
    }
    let mut asking = arg::<AuthorizerVal>(&args, 0)?.0.clone();
    asking.check.service_account = Some((namespace.to_owned(), name.to_owned()));
    Ok(CowVal::owned(AuthorizerVal(asking)))
}

fn check<'b, 'v>(asking: &Asking, verb: &str) -> Out<'b, 'v> {
    charge(CHECK_COST)?;
    let check = Check { verb: verb.to_owned(), ..asking.check.clone() };
    Ok(CowVal::owned(DecisionVal(asking.authorizer.authorize(&check))))
}

fn decision<'b>(args: &'b Args<'_, '_>) -> Result<&'b Decision, ExecutionError> {
    arg::<DecisionVal>(args, 0).map(|value| &value.0)
}
