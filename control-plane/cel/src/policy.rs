//! Admission policies: the request, which policies and bindings are for it, and their parameters.
//!
//! Pure: the server gives objects, the namespace and a [`ParamLookup`]. Upstream counterpart: `admission/plugin/policy/generic`.

mod checks;
pub mod matching;
pub mod mutating;
mod params;
pub mod validating;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::compile::Declared;
use crate::expression::{Expect, Expression, declared};
use crate::library::authz::{Authorizer, ResourceTarget};
use crate::variables::{NamedExpression, Variables};

pub use params::{ParamKind, ParamLookup};

/// A resource in one version, and its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceKind {
    /// API group, empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Kind of the objects.
    pub kind: String,
}

/// A ValidatingAdmissionPolicyBinding or MutatingAdmissionPolicyBinding.
#[derive(Clone, Debug)]
pub struct Binding {
    name: String,
    policy: String,
    param_ref: Value,
    match_resources: Value,
    /// `validationActions`, which only those of validating policies have.
    actions: Vec<String>,
}

impl Binding {
    /// Reads a stored binding.
    #[must_use]
    pub fn read(binding: &Value) -> Self {
        let spec = &binding["spec"];
        Self {
            name: text(&binding["metadata"], "name").to_owned(),
            policy: text(spec, "policyName").to_owned(),
            param_ref: spec["paramRef"].clone(),
            match_resources: spec["matchResources"].clone(),
            actions: list(&spec["validationActions"]).iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// The name of the policy that it binds.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }
}

/// One write, as admission sees it.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'a str,
    /// What is written, in the version of the request.
    pub resource: &'a ResourceKind,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty. For a Namespace it is its own name, as upstream.
    pub namespace: &'a str,
    /// Name, or empty if the server is to make one.
    pub name: &'a str,
    /// The new object; none on delete.
    pub object: Option<&'a Value>,
    /// The old object; none on create.
    pub old_object: Option<&'a Value>,
    /// The namespace's object; none for what is not in one.
    pub namespace_object: Option<&'a Value>,
    /// `userInfo` of the request: `username`, `uid`, `groups`, `extra`.
    pub user: &'a Value,
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// `CreateOptions`, `UpdateOptions` or the like; `null` for none.
    pub options: &'a Value,
    /// The same resource in other groups and versions, for `matchPolicy: Equivalent`.
    pub equivalents: &'a [ResourceKind],
}

impl Attributes<'_> {
    /// The variable `request`, for a policy that matched the resource as `matched`.
    #[must_use]
    pub fn request(&self, matched: &ResourceKind) -> Value {
        let kind = |of: &ResourceKind| json!({"group": of.group, "version": of.version, "kind": of.kind});
        let resource = |of: &ResourceKind| json!({"group": of.group, "version": of.version, "resource": of.resource});
        let mut request = Map::new();
        request.insert("kind".to_owned(), kind(matched));
        request.insert("resource".to_owned(), resource(matched));
        request.insert("requestKind".to_owned(), kind(self.resource));
        request.insert("requestResource".to_owned(), resource(self.resource));
        let texts = [
            ("subResource", self.subresource),
            ("requestSubResource", self.subresource),
            ("name", self.name),
            ("namespace", self.namespace),
        ];
        for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            request.insert(field.to_owned(), text.into());
        }
        request.insert("operation".to_owned(), self.operation.into());
        request.insert("userInfo".to_owned(), self.user.clone());
        request.insert("dryRun".to_owned(), self.dry_run.into());
        request.insert("options".to_owned(), self.options.clone());
        Value::Object(request)
    }

    /// What `authorizer.requestResource` asks about.
    #[must_use]
    pub fn request_resource(&self) -> ResourceTarget {
        ResourceTarget {
            group: self.resource.group.clone(),
            resource: self.resource.resource.clone(),
            subresource: self.subresource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            ..ResourceTarget::default()
        }
    }

    /// A Namespace is not in itself, whatever its attributes say.
    fn variable_namespace(&self) -> Option<&Value> {
        let is_namespace = self.resource.group.is_empty() && self.resource.kind == "Namespace";
        if is_namespace { None } else { self.namespace_object }
    }
}

/// The variables of one evaluation.
fn variables<'v>(
    attributes: &Attributes<'v>,
    namespace: Option<&'v Value>,
    request: &'v Value,
    params: Option<Option<&'v Value>>,
    authorizer: Option<&Arc<dyn Authorizer>>,
) -> Variables<'v> {
    let mut variables = Variables::new()
        .json("object", attributes.object)
        .json("oldObject", attributes.old_object)
        .json("request", Some(request))
        .json("namespaceObject", namespace);
    if let Some(params) = params {
        variables = variables.json("params", params);
    }
    if let Some(authorizer) = authorizer {
        variables = variables.authorizer(authorizer, attributes.request_resource());
    }
    variables
}

/// Names that a policy's expressions may read.
#[derive(Clone, Debug)]
struct Scope {
    names: Vec<&'static str>,
    composed: Vec<(String, crate::compile::Plain)>,
    typed_literals: bool,
}

impl Scope {
    fn new(params: bool, authorizer: bool, typed_literals: bool) -> Self {
        let mut names = vec!["object", "oldObject", "request", "namespaceObject"];
        if params {
            names.push("params");
        }
        if authorizer {
            names.extend(["authorizer", "authorizer.requestResource"]);
        }
        Self { names, composed: Vec::new(), typed_literals }
    }

    fn compile(&self, text: &str, expect: Expect) -> Result<Expression, crate::expression::CompileError> {
        let own = self.names.iter().map(|name| declared(name));
        let composed = self.composed.iter().map(|(name, plain)| Declared { name, plain: plain.clone() });
        Expression::compile_declared(text, &own.chain(composed).collect::<Vec<_>>(), expect)
    }

    /// Adds the policy's variables, each of which may read those before it.
    fn compose(&mut self, variables: &Value) -> Vec<NamedExpression> {
        let mut out = Vec::new();
        let expect = if self.typed_literals { Expect::Mutation } else { Expect::Any };
        for variable in list(variables) {
            let name = text(variable, "name").to_owned();
            let expression = self.compile(text(variable, "expression"), expect);
            let plain =
                expression.as_ref().map_or(crate::compile::Plain::Unknown, |expression| expression.plain().clone());
            self.composed.push((format!("variables.{name}"), plain));
            out.push(NamedExpression { name, expression });
        }
        out
    }

    /// The same without the authorizer (message expressions).
    fn without_authorizer(&self) -> Self {
        let mut scope = self.clone();
        scope.names.retain(|name| !name.starts_with("authorizer"));
        scope
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Whether the request is for the policies' own kinds, which no policy judges.
fn is_policy_resource(resource: &ResourceKind) -> bool {
    resource.group == "admissionregistration.k8s.io"
        && [
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ]
        .contains(&resource.resource.as_str())
}
