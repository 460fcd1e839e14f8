//! The roles and bindings a new cluster starts with: upstream's names and, for the kinds served here, upstream's rules.
//!
//! Upstream counterpart: `plugin/pkg/auth/authorizer/rbac/bootstrappolicy`. `admin`, `edit` and `view` begin with their rules; what else
//! aggregates into them is the controller's work.

use serde_json::{Value, json};

/// What the names of roles and bindings begin with that upstream does not have.
pub const OWN_PREFIX: &str = "keelson:";
const RBAC: &str = "rbac.authorization.k8s.io";
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const ALL: &[&str] = &["get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"];

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn urls(paths: &[&str]) -> Value {
    json!({"nonResourceURLs": paths, "verbs": ["get"]})
}

fn role(name: &str, rules: Vec<Value>) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules,
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}}})
}

/// A role whose rules are those of all roles that are labelled for it; itself part of `of`.
fn aggregate(name: &str, rules: Vec<Value>, of: Option<&str>) -> Value {
    let mut out = role(name, rules);
    let label = |name: &str| format!("{RBAC}/aggregate-to-{name}");
    out["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label(name): "true"}}]});
    if let Some(of) = of {
        out["metadata"]["labels"][label(of)] = json!("true");
    }
    out
}

/// The rules that aggregate into `name`.
fn part(name: &str, rules: Vec<Value>) -> Value {
    let mut out = role(&format!("system:aggregate-to-{name}"), rules);
    out["metadata"]["labels"][format!("{RBAC}/aggregate-to-{name}")] = json!("true");
    out
}

fn binding(name: &str, role: &str, subjects: &[(&str, &str)]) -> Value {
    let subjects: Vec<_> =
        subjects.iter().map(|(kind, name)| json!({"apiGroup": RBAC, "kind": kind, "name": name})).collect();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "subjects": subjects,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}}})
}

fn view_rules() -> Vec<Value> {
    vec![
        rule(
            &[""],
            &[
                "bindings",
                "configmaps",
                "endpoints",
                "events",
                "limitranges",
                "namespaces",
                "namespaces/status",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "pods",
                "pods/log",
                "pods/status",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "replicationcontrollers/status",
                "resourcequotas",
                "resourcequotas/status",
                "serviceaccounts",
                "services",
                "services/status",
            ],
            READ,
        ),
        rule(&["discovery.k8s.io"], &["endpointslices"], READ),
        rule(&["resource.k8s.io"], &["resourceclaims", "resourceclaims/status", "resourceclaimtemplates"], READ),
        rule(
            &["apps"],
            &[
                "controllerrevisions",
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/scale",
                "deployments/status",
                "replicasets",
                "replicasets/scale",
                "replicasets/status",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status",
            ],
            READ,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"], READ),
        rule(&["batch"], &["cronjobs", "cronjobs/status", "jobs", "jobs/status"], READ),
        rule(&["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"], READ),
        rule(&["networking.k8s.io"], &["ingresses", "ingresses/status", "networkpolicies"], READ),
    ]
}

fn edit_rules() -> Vec<Value> {
    let mut rules = view_rules();
    rules.extend([
        rule(&[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"], READ),
        rule(&[""], &["serviceaccounts"], &["impersonate"]),
        rule(&[""], &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"], WRITE),
        rule(&[""], &["pods/eviction", "serviceaccounts/token"], &["create"]),
        rule(
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
                "services/proxy",
            ],
            WRITE,
        ),
        rule(
            &["apps"],
            &[
                "daemonsets",
                "deployments",
                "deployments/rollback",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
            WRITE,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], WRITE),
        rule(&["batch"], &["cronjobs", "jobs"], WRITE),
        rule(&["policy"], &["poddisruptionbudgets"], WRITE),
        rule(&["networking.k8s.io"], &["ingresses", "networkpolicies"], WRITE),
        rule(&["coordination.k8s.io"], &["leases"], ALL),
        rule(&["resource.k8s.io"], &["resourceclaims", "resourceclaimtemplates"], WRITE),
    ]);
    rules
}

fn admin_rules() -> Vec<Value> {
    let mut rules = edit_rules();
    rules.push(rule(&["authorization.k8s.io"], &["localsubjectaccessreviews"], &["create"]));
    rules.push(rule(&[RBAC], &["rolebindings", "roles"], ALL));
    rules
}

/// Every default ClusterRole.
#[must_use]
pub fn cluster_roles() -> Vec<Value> {
    let health = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    let events = || rule(&["", "events.k8s.io"], &["events"], &["create", "patch", "update"]);
    vec![
        role("cluster-admin", vec![rule(&["*"], &["*"], &["*"]), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})]),
        aggregate("admin", admin_rules(), None),
        aggregate("edit", edit_rules(), Some("admin")),
        aggregate("view", view_rules(), Some("edit")),
        part("admin", admin_rules()),
        part("edit", edit_rules()),
        part("view", view_rules()),
        role("system:discovery", vec![urls(&discovery)]),
        role("system:public-info-viewer", vec![urls(&health)]),
        role(
            "system:monitoring",
            vec![urls(&[
                "/healthz",
                "/healthz/*",
                "/livez",
                "/livez/*",
                "/metrics",
                "/metrics/slis",
                "/readyz",
                "/readyz/*",
            ])],
        ),
        role(
            "system:basic-user",
            vec![
                rule(&["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"], &["create"]),
                rule(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        role(
            "system:service-account-issuer-discovery",
            vec![urls(&["/.well-known/openid-configuration", "/openid/v1/jwks"])],
        ),
        role(
            "system:auth-delegator",
            vec![
                rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
                rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
            ],
        ),
        role(
            "system:node-bootstrapper",
            vec![rule(&["certificates.k8s.io"], &["certificatesigningrequests"], &["create", "get", "list", "watch"])],
        ),
        role(
            "system:node-proxier",
            vec![
                rule(&[""], &["endpoints", "services"], &["list", "watch"]),
                rule(&[""], &["nodes"], READ),
                events(),
                rule(&["discovery.k8s.io"], &["endpointslices"], &["list", "watch"]),
                rule(&["networking.k8s.io"], &["servicecidrs"], &["list", "watch"]),
            ],
        ),
        role(
            "keelson:embedded-dataplane",
            vec![
                rule(&["discovery.k8s.io"], &["endpointslices"], READ),
                rule(&["networking.k8s.io"], &["servicecidrs"], READ),
            ],
        ),
        role("keelson:host-gw", vec![rule(&[""], &["nodes"], READ)]),
        role(
            "system:kubelet-api-admin",
            vec![
                rule(&[""], &["nodes"], READ),
                rule(&[""], &["nodes"], &["proxy"]),
                rule(
                    &[""],
                    &[
                        "nodes/configz",
                        "nodes/healthz",
                        "nodes/log",
                        "nodes/metrics",
                        "nodes/pods",
                        "nodes/proxy",
                        "nodes/stats",
                    ],
                    &["*"],
                ),
            ],
        ),
        role(
            "system:kube-dns",
            vec![
                rule(&[""], &["endpoints", "services", "pods", "namespaces"], &["list", "watch"]),
                rule(&["discovery.k8s.io"], &["endpointslices"], &["list", "watch"]),
            ],
        ),
        role("system:kube-controller-manager", vec![rule(&["*"], &["*"], ALL), events()]),
        role(
            "system:kube-scheduler",
            vec![
                events(),
                rule(&["coordination.k8s.io"], &["leases"], ALL),
                rule(
                    &[""],
                    &[
                        "nodes",
                        "namespaces",
                        "persistentvolumeclaims",
                        "persistentvolumes",
                        "services",
                        "replicationcontrollers",
                    ],
                    READ,
                ),
                rule(&[""], &["pods"], &["delete", "get", "list", "watch"]),
                rule(&[""], &["bindings", "pods/binding"], &["create"]),
                rule(&[""], &["pods/status"], &["patch", "update"]),
                rule(&["apps"], &["replicasets", "statefulsets"], READ),
                rule(&["policy"], &["poddisruptionbudgets"], READ),
                rule(&["storage.k8s.io"], &["csidrivers", "csinodes", "csistoragecapacities", "storageclasses"], READ),
            ],
        ),
    ]
}

/// Every default ClusterRoleBinding.
#[must_use]
pub fn cluster_role_bindings() -> Vec<Value> {
    let authenticated = ("Group", super::AUTHENTICATED);
    vec![
        binding("cluster-admin", "cluster-admin", &[("Group", super::MASTERS)]),
        binding("system:discovery", "system:discovery", &[authenticated]),
        binding("system:basic-user", "system:basic-user", &[authenticated]),
        binding(
            "system:public-info-viewer",
            "system:public-info-viewer",
            &[authenticated, ("Group", super::UNAUTHENTICATED)],
        ),
        binding("system:monitoring", "system:monitoring", &[("Group", "system:monitoring")]),
        binding(
            "system:service-account-issuer-discovery",
            "system:service-account-issuer-discovery",
            &[("Group", "system:serviceaccounts")],
        ),
        binding("system:node-proxier", "system:node-proxier", &[("User", "system:kube-proxy")]),
        // An agent that hosts the dataplane reads slices with its own certificate; upstream's system:node may not.
        binding("keelson:embedded-dataplane", "keelson:embedded-dataplane", &[("Group", super::node::NODES)]),
        // An agent that lays routes to other nodes' pods reads all nodes; upstream's authorizer shows it only its own.
        binding("keelson:host-gw", "keelson:host-gw", &[("Group", super::node::NODES)]),
        binding("system:kube-dns", "system:kube-dns", &[("User", "system:kube-dns")]),
        binding(
            "system:kube-controller-manager",
            "system:kube-controller-manager",
            &[("User", "system:kube-controller-manager")],
        ),
        binding("system:kube-scheduler", "system:kube-scheduler", &[("User", "system:kube-scheduler")]),
    ]
}
