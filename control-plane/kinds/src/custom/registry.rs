//! The custom kinds that a server knows.
//!
//! Resources are `&'static`, because the whole server passes them so: each identity of a custom kind (its names, version, scope and
//! subresources) is leaked once and found again when it comes back, so that memory is bounded by the number of identities there ever
//! were. What may change without a new identity is swapped inside of [`Kind`]. Invariant: no two resources of [`Registry::all`] share
//! group, version and plural, or group, version and kind, as far as definitions have accepted names.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use super::kind::Kind;
use super::openapi::definition_name;
use super::status::established;
use super::version::{CompileError, Definition, Version};
use crate::kinds::{SCALE, status as status_subresource};
use crate::resource::{self, Resource, STORED, Scope, Subresource};

/// What a resource is; two definitions with the same are the same kind.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    group: String,
    version: String,
    plural: String,
    singular: String,
    kind: String,
    list_kind: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    namespaced: bool,
    status: bool,
    scale: bool,
}

#[derive(Clone, Copy)]
struct Leaked {
    resource: &'static Resource,
    kind: &'static Kind,
}

#[derive(Default)]
struct Inner {
    leaked: HashMap<Identity, Leaked>,
    /// Served resources of each definition, by its name.
    served: BTreeMap<String, Vec<&'static Resource>>,
    all: Arc<[&'static Resource]>,
}

/// All kinds of a server: those compiled in, and those of definitions.
pub struct Registry {
    inner: RwLock<Inner>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("custom", &self.resources()).finish()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// A registry without definitions.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: RwLock::new(Inner { all: resource::resources().into(), ..Inner::default() }) }
    }

    /// Serves a definition as it is now: new, changed, or not at all before its names were accepted. Returns its resources.
    ///
    /// # Errors
    /// [`CompileError`]; then what was served before stays.
    pub fn register(&self, crd: &Value) -> Result<Vec<&'static Resource>, CompileError> {
        let definition = Definition::compile(crd)?;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if !established(crd) {
            inner.served.remove(&definition.name);
            inner.refresh();
            return Ok(Vec::new());
        }
        let list: Vec<&'static Resource> =
            definition.versions.iter().map(|version| inner.resource(&definition, version)).collect();
        inner.served.insert(definition.name.clone(), list.clone());
        inner.refresh();
        Ok(list)
    }

    /// The kind in the version that objects are stored in, served or not: for who has to delete them.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn stored(&self, crd: &Value) -> Result<&'static Resource, CompileError> {
        let mut all = crd.clone();
        let mut storage = String::new();
        for version in all["spec"]["versions"].as_array_mut().into_iter().flatten() {
            version["served"] = Value::Bool(true);
            if version["storage"] == true {
                storage = version["name"].as_str().unwrap_or_default().to_owned();
            }
        }
        let definition = Definition::compile(&all)?;
        let version = definition.versions.iter().find(|version| version.name() == storage);
        let version = version.ok_or_else(|| CompileError::NoStorage(definition.name.clone()))?;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        Ok(inner.resource(&definition, version))
    }

    /// Serves a definition no longer. Returns what it served.
    pub fn unregister(&self, name: &str) -> Vec<&'static Resource> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let gone = inner.served.remove(name).unwrap_or_default();
        inner.refresh();
        gone
    }

    /// The custom kinds, in discovery order.
    #[must_use]
    pub fn resources(&self) -> Vec<&'static Resource> {
        self.all()[resource::resources().len()..].to_vec()
    }

    /// All kinds in discovery order: those compiled in, then custom ones by group, best version and plural.
    #[must_use]
    pub fn all(&self) -> Arc<[&'static Resource]> {
        Arc::clone(&self.inner.read().unwrap_or_else(PoisonError::into_inner).all)
    }

    /// The entry for a URL.
    #[must_use]
    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
        self.all().iter().copied().find(|r| r.plural == plural && r.group == group && r.version == version)
    }

    /// The entry for an object's group, version and kind.
    #[must_use]
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
        self.all().iter().copied().find(|r| r.kind == kind && r.group == group && r.version == version)
    }
}

impl Inner {
    fn resource(&mut self, definition: &Definition, version: &Arc<Version>) -> &'static Resource {
        let identity = Identity {
            group: definition.group.clone(),
            version: version.name().to_owned(),
            plural: definition.plural.clone(),
            singular: definition.singular.clone(),
            kind: definition.kind.clone(),
            list_kind: definition.list_kind.clone(),
            short_names: definition.short_names.clone(),
            categories: definition.categories.clone(),
            namespaced: definition.scope == Scope::Namespaced,
            status: version.has_status(),
            scale: version.scale().is_some(),
        };
        if let Some(leaked) = self.leaked.get(&identity) {
            leaked.kind.replace(Arc::clone(version));
            return leaked.resource;
        }
        let leaked = leak(&identity, version);
        self.leaked.insert(identity, leaked);
        leaked.resource
    }

    fn refresh(&mut self) {
        let mut custom: Vec<&'static Resource> = self.served.values().flatten().copied().collect();
        custom.sort_by(|a, b| {
            let versions = || priority(b.version).cmp(&priority(a.version)).then_with(|| a.version.cmp(b.version));
            a.group.cmp(b.group).then_with(versions).then_with(|| a.plural.cmp(b.plural))
        });
        self.all = resource::resources().iter().copied().chain(custom).collect();
    }
}

fn leak(identity: &Identity, version: &Arc<Version>) -> Leaked {
    let text = |text: &str| -> &'static str { Box::leak(text.into()) };
    let texts = |list: &[String]| -> &'static [&'static str] { Box::leak(list.iter().map(|s| text(s)).collect()) };
    let (group, kind_name, version_name) = (text(&identity.group), text(&identity.kind), text(&identity.version));
    let mut subresources: Vec<Subresource> = Vec::new();
    if identity.status {
        subresources.push(status_subresource(group, version_name, kind_name));
    }
    if identity.scale {
        subresources.push(SCALE);
    }
    let kind: &'static Kind = Box::leak(Box::new(Kind::new(Arc::clone(version))));
    let resource = Resource {
        group,
        version: version_name,
        kind: kind_name,
        list_kind: text(&identity.list_kind),
        plural: text(&identity.plural),
        singular: text(&identity.singular),
        short_names: texts(&identity.short_names),
        categories: texts(&identity.categories),
        scope: if identity.namespaced { Scope::Namespaced } else { Scope::Cluster },
        storage_prefix: text(&format!("/registry/{group}/{}/", identity.plural)),
        verbs: STORED,
        subresources: Box::leak(subresources.into_boxed_slice()),
        schema: text(&definition_name(group, version_name, kind_name)),
        root: super::openapi::ROOT,
        strategy: kind,
        // Every version is a view of what is stored: reading prunes and fills in by the definition of the moment.
        storage_version: false,
        ..Resource::BASE
    };
    Leaked { resource: Box::leak(Box::new(resource)), kind }
}

/// Order of versions: `v2` before `v1` before `v2beta1` before `v1alpha1` before anything else.
fn priority(version: &str) -> (u8, u32, u32) {
    let parse = || -> Option<(u8, u32, u32)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => return Some((3, major, 0)),
            rest => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (2, minor),
                (None, Some(minor)) => (1, minor),
                (None, None) => return None,
            },
        };
        Some((stage, major, if minor.is_empty() { 0 } else { minor.parse().ok()? }))
    };
    parse().unwrap_or((0, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        let mut versions = ["foo1", "v1", "v10", "v3beta1", "v2", "v11alpha2", "v12alpha1", "v3beta2", "foo10"];
        versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then_with(|| a.cmp(b)));
        assert_eq!(versions, ["v10", "v2", "v1", "v3beta2", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]);
    }
}
