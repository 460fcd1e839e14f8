//! Values that the types of a configuration allow and that mean nothing: found before the agent starts, all at once.
//!
//! Values without effect here yet are checked too: what upstream refuses is a mistake whoever reads it. Upstream
//! counterpart: `pkg/kubelet/apis/config/validation`, `pkg/kubelet/eviction/helpers.go`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use keelson_kinds::names;
use kube_common::duration::GoDuration;
use kube_common::quantity::Quantity;
use kube_common::yaml::PathSegment;
use serde_json::Value;

use super::KubeletConfiguration;
use crate::create::sysctl;
use crate::source::url;

/// Signals of eviction thresholds.
const SIGNALS: [&str; 9] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
];
/// Resources that can be reserved.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
/// Entries of `enforceNodeAllocatable`.
const ENFORCEMENTS: [&str; 6] =
    ["pods", "system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible", "none"];
/// Effects of taints.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Keys and indexes that lead to it.
    pub path: Vec<PathSegment>,
    /// What is wrong.
    pub message: String,
}

fn keys(dotted: &str) -> Vec<PathSegment> {
    dotted.split('.').map(|key| PathSegment::Key(key.to_owned())).collect()
}

#[derive(Default)]
pub(super) struct Found(pub Vec<Problem>);

impl Found {
    /// At a dotted field.
    pub fn at(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Problem { path: keys(field), message: message.into() });
    }

    /// At a key of a map; keys may have dots.
    pub fn key(&mut self, field: &str, key: &str, message: impl Into<String>) {
        let mut path = keys(field);
        path.push(PathSegment::Key(key.to_owned()));
        self.0.push(Problem { path, message: message.into() });
    }

    /// At an item of a list, or a field of it.
    pub fn item(&mut self, field: &str, index: usize, inner: Option<&str>, message: impl Into<String>) {
        let mut path = keys(field);
        path.push(PathSegment::Index(index));
        path.extend(inner.map(|key| PathSegment::Key(key.to_owned())));
        self.0.push(Problem { path, message: message.into() });
    }

    fn require(&mut self, ok: bool, field: &str, message: &str) {
        if !ok {
            self.at(field, message);
        }
    }

    fn one_of(&mut self, field: &str, value: Option<&Value>, valid: &[&str]) {
        let Some(value) = value else { return };
        if !value.as_str().is_some_and(|text| valid.contains(&text)) {
            self.at(field, format!("{value} must be one of {}", valid.join(", ")));
        }
    }

    /// A whole number in a range; what it is when it is one.
    fn whole(&mut self, field: &str, value: Option<&Value>, least: i64, most: i64) -> Option<i64> {
        let value = value?;
        let number = value.as_i64().filter(|n| (least..=most).contains(n));
        if number.is_none() {
            let range = if most == i64::MAX { format!("{least} or more") } else { format!("{least} to {most}") };
            self.at(field, format!("{value} must be a whole number, {range}"));
        }
        number
    }

    fn at_least(&mut self, field: &str, value: Option<&Value>, least: GoDuration) {
        let Some(value) = value else { return };
        match value.as_str().map(GoDuration::parse) {
            Some(Ok(time)) if time.0 >= least.0 => {}
            Some(Ok(_)) => self.at(field, format!("{value} must be {least} or more")),
            _ => self.at(field, format!("{value} is no duration such as 10s or 1h30m")),
        }
    }

    /// Taints of a node.
    pub fn taints(&mut self, field: &str, taints: &[Taint]) {
        for (index, taint) in taints.iter().enumerate() {
            for (inner, message) in taint_problems(taint) {
                self.item(field, index, Some(inner), message);
            }
        }
    }
}

/// What is wrong with a taint: (field, what).
pub(super) fn taint_problems(taint: &Taint) -> Vec<(&'static str, String)> {
    let mut out: Vec<(&'static str, String)> =
        names::qualified_name(&taint.key).into_iter().map(|m| ("key", format!("{:?}: {m}", taint.key))).collect();
    let value = taint.value.as_deref().unwrap_or_default();
    out.extend(names::label_value(value).into_iter().map(|m| ("value", format!("{value:?}: {m}"))));
    if !EFFECTS.contains(&taint.effect.as_str()) {
        out.push(("effect", format!("{:?} must be one of {}", taint.effect, EFFECTS.join(", "))));
    }
    if taint.time_added.is_some() {
        out.push(("timeAdded", "cannot be configured".into()));
    }
    out
}

/// What is wrong with a node's name; upper case counts as lower, as the agent makes it.
pub(super) fn node_name_problem(name: &str) -> Option<String> {
    let why = names::dns1123_subdomain(&name.trim().to_lowercase()).into_iter().next()?;
    Some(format!("{name:?} cannot be a node's name: {why}"))
}

/// Everything wrong with upstream's document.
pub(super) fn kubelet(config: &KubeletConfiguration) -> Vec<Problem> {
    let mut found = Found::default();
    numbers(config, &mut found);
    choices(config, &mut found);
    reservations(config, &mut found);
    evictions(config, &mut found);
    unused_numbers(config, &mut found);
    found.taints("registerWithTaints", &config.register_with_taints);
    for (index, pattern) in config.allowed_unsafe_sysctls.iter().enumerate() {
        if let Some(message) = sysctl::pattern_problem(pattern) {
            found.item("allowedUnsafeSysctls", index, None, message);
        }
    }
    for cidr in config.pod_cidr.iter().flat_map(|list| list.split(',')) {
        if cidr.parse::<ipnet::IpNet>().is_err() {
            found.at("podCIDR", format!("{cidr:?} is no address range such as 10.244.0.0/24"));
        }
    }
    found.0
}

fn numbers(c: &KubeletConfiguration, found: &mut Found) {
    for (field, value) in [
        ("maxPods", c.max_pods),
        ("registryPullQPS", c.registry_pull_qps),
        ("registryBurst", c.registry_burst),
        ("eventRecordQPS", c.event_record_qps),
        ("eventBurst", c.event_burst),
        ("kubeAPIQPS", c.kube_api_qps),
        ("kubeAPIBurst", c.kube_api_burst),
    ] {
        found.require(value >= 0, field, &format!("{value} must not be negative"));
    }
    found.require(c.pod_pids_limit >= -1, "podPidsLimit", "must be -1 (no limit) or more");
    found.require(c.node_status_max_images >= -1, "nodeStatusMaxImages", "must be -1 (no limit) or more");
    found.require(c.node_lease_duration_seconds > 0, "nodeLeaseDurationSeconds", "must be greater than 0");
    found.require(!c.file_check_frequency.0.is_zero(), "fileCheckFrequency", "must be greater than 0");
    found.require(!c.http_check_frequency.0.is_zero(), "httpCheckFrequency", "must be greater than 0");
    if !c.static_pod_url.is_empty()
        && let Err(message) = url::address(&c.static_pod_url)
    {
        found.at("staticPodURL", message);
    }
    for (name, message) in url::header_problems(&c.static_pod_url_header) {
        found.key("staticPodURLHeader", &name, message);
    }
    found.require(!c.sync_frequency.0.is_zero(), "syncFrequency", "must be greater than 0");
    found.require(!c.node_status_update_frequency.0.is_zero(), "nodeStatusUpdateFrequency", "must be greater than 0");
    found.require((-1000..=1000).contains(&c.oom_score_adj), "oomScoreAdj", "must be -1000 to 1000");
    let period = c.cpu_cfs_quota_period.0.as_micros();
    found.require((1000..=1_000_000).contains(&period), "cpuCFSQuotaPeriod", "must be 1ms to 1s");
    found.require(c.max_parallel_image_pulls.is_none_or(|n| n >= 1), "maxParallelImagePulls", "must be at least 1");
    found.require(
        !(c.max_parallel_image_pulls.is_some_and(|n| n > 1) && c.serialize_image_pulls == Some(true)),
        "maxParallelImagePulls",
        "cannot be larger than 1 unless serializeImagePulls is false",
    );
    if let Some(longest) = c.crash_loop_back_off.max_container_restart_period {
        found.require(
            (1..=300).contains(&longest.0.as_secs()),
            "crashLoopBackOff.maxContainerRestartPeriod",
            "must be 1s to 300s",
        );
    }
    found.require(c.pod_logs_dir.is_absolute(), "podLogsDir", "must be an absolute path");
    found.require(!c.container_runtime_endpoint.is_empty(), "containerRuntimeEndpoint", "must not be empty");
}

fn choices(c: &KubeletConfiguration, found: &mut Found) {
    found.one_of("cpuManagerPolicy", c.cpu_manager_policy.as_ref(), &["none", "static"]);
    found.one_of("memoryManagerPolicy", c.memory_manager_policy.as_ref(), &["None", "Static"]);
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    found.one_of("topologyManagerPolicy", c.topology_manager_policy.as_ref(), &policies);
    found.one_of("topologyManagerScope", c.topology_manager_scope.as_ref(), &["container", "pod"]);
    found.one_of("hairpinMode", c.hairpin_mode.as_ref(), &["promiscuous-bridge", "hairpin-veth", "none"]);
    let versions = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    found.one_of("tlsMinVersion", c.tls_min_version.as_ref().filter(|v| v.as_str() != Some("")), &versions);
    found.one_of(
        "configMapAndSecretChangeDetectionStrategy",
        c.config_map_and_secret_change_detection_strategy.as_ref(),
        &["Get", "Cache", "Watch"],
    );
    let swap = c.memory_swap.as_ref().and_then(|s| s.get("swapBehavior"));
    found.one_of("memorySwap.swapBehavior", swap, &["", "NoSwap", "LimitedSwap"]);
    if c.run_once == Some(Value::Bool(true)) {
        found.at("runOnce", "there is no such mode any more; leave it out");
    }
    let list = &c.enforce_node_allocatable;
    for (index, entry) in list.iter().enumerate() {
        let fail = |found: &mut Found, message: String| found.item("enforceNodeAllocatable", index, None, message);
        if !ENFORCEMENTS.contains(&entry.as_str()) {
            fail(found, format!("{entry:?} must be one of {}", ENFORCEMENTS.join(", ")));
        } else if list[..index].contains(entry) {
            fail(found, format!("{entry:?} is there twice"));
        } else if entry == "none" && list.len() > 1 {
            fail(found, "\"none\" stands alone".into());
        }
        for (prefix, field, cgroup) in [
            ("system-reserved", "systemReservedCgroup", &c.system_reserved_cgroup),
            ("kube-reserved", "kubeReservedCgroup", &c.kube_reserved_cgroup),
        ] {
            let named = cgroup.as_ref().and_then(Value::as_str).is_some_and(|name| !name.is_empty());
            if entry.starts_with(prefix) && !named {
                fail(found, format!("{entry:?} needs {field}"));
            }
        }
    }
}

fn reservations(c: &KubeletConfiguration, found: &mut Found) {
    for (field, map) in [("systemReserved", &c.system_reserved), ("kubeReserved", &c.kube_reserved)] {
        for (key, value) in map {
            if !RESERVABLE.contains(&key.as_str()) {
                let message = format!("{key:?} cannot be reserved, only {}", RESERVABLE.join(", "));
                found.key(field, key, message);
                continue;
            }
            match Quantity::parse(value) {
                Err(_) => found.key(field, key, format!("{value:?} is no quantity such as 100m or 1Gi")),
                Ok(q) if q.is_negative() => found.key(field, key, format!("{value:?} must not be negative")),
                Ok(_) => {}
            }
        }
    }
}

/// A map of texts; what is no text is told.
fn texts(found: &mut Found, field: &str, value: Option<&Value>) -> BTreeMap<String, String> {
    let Some(value) = value else { return BTreeMap::new() };
    let Some(map) = value.as_object() else {
        found.at(field, format!("{value} must be a map of texts"));
        return BTreeMap::new();
    };
    let mut out = BTreeMap::new();
    for (key, value) in map {
        match value.as_str() {
            Some(text) => {
                out.insert(key.clone(), text.to_owned());
            }
            None => found.key(field, key, format!("{value} must be a text")),
        }
    }
    out
}

fn threshold_problem(text: &str) -> Option<String> {
    if let Some(percent) = text.strip_suffix('%') {
        let fine = percent.parse::<f64>().is_ok_and(|p| (0.0..=100.0).contains(&p));
        return (!fine).then(|| format!("{text:?} must be 0% to 100%"));
    }
    match Quantity::parse(text) {
        Err(_) => Some(format!("{text:?} is neither a quantity such as 100Mi nor a share such as 10%")),
        Ok(q) if q.is_negative() => Some(format!("{text:?} must not be negative")),
        Ok(_) => None,
    }
}

fn evictions(c: &KubeletConfiguration, found: &mut Found) {
    let soft = texts(found, "evictionSoft", c.eviction_soft.as_ref());
    let grace = texts(found, "evictionSoftGracePeriod", c.eviction_soft_grace_period.as_ref());
    let reclaim = texts(found, "evictionMinimumReclaim", c.eviction_minimum_reclaim.as_ref());
    for (field, map) in
        [("evictionHard", &c.eviction_hard), ("evictionSoft", &soft), ("evictionMinimumReclaim", &reclaim)]
    {
        for (signal, text) in map {
            let unknown = || format!("unknown signal {signal:?}; known are {}", SIGNALS.join(", "));
            let problem = if SIGNALS.contains(&signal.as_str()) { threshold_problem(text) } else { Some(unknown()) };
            if let Some(message) = problem {
                found.key(field, signal, message);
            }
        }
    }
    for signal in soft.keys().filter(|signal| !grace.contains_key(*signal)) {
        found.key("evictionSoft", signal, "needs an entry in evictionSoftGracePeriod");
    }
    for (signal, text) in &grace {
        if !SIGNALS.contains(&signal.as_str()) {
            found.key("evictionSoftGracePeriod", signal, format!("unknown signal {signal:?}"));
        } else if !GoDuration::parse(text).is_ok_and(|time| !time.0.is_zero()) {
            found.key("evictionSoftGracePeriod", signal, format!("{text:?} must be a duration above 0"));
        }
    }
}

fn unused_numbers(c: &KubeletConfiguration, found: &mut Found) {
    const MANY: i64 = i64::MAX;
    if let Some(value) = &c.container_log_max_size {
        let fine =
            value.as_str().map(Quantity::parse).is_some_and(|q| q.is_ok_and(|q| !q.is_negative() && !q.is_zero()));
        found.require(fine, "containerLogMaxSize", &format!("{value} must be a quantity above 0 such as 10Mi"));
    }
    found.whole("containerLogMaxFiles", c.container_log_max_files.as_ref(), 2, MANY);
    found.whole("containerLogMaxWorkers", c.container_log_max_workers.as_ref(), 1, MANY);
    let interval = c.container_log_monitor_interval.as_ref();
    found.at_least("containerLogMonitorInterval", interval, GoDuration::from_secs(3));
    found.at_least("imageMinimumGCAge", c.image_minimum_gc_age.as_ref(), GoDuration::from_secs(0));
    found.at_least("shutdownGracePeriod", c.shutdown_grace_period.as_ref(), GoDuration::from_secs(0));
    let high = found.whole("imageGCHighThresholdPercent", c.image_gc_high_threshold_percent.as_ref(), 0, 100);
    let low = found.whole("imageGCLowThresholdPercent", c.image_gc_low_threshold_percent.as_ref(), 0, 100);
    // Upstream's defaults stand for the one that is left out.
    if (high.is_some() || low.is_some()) && low.unwrap_or(80) >= high.unwrap_or(85) {
        let field = if low.is_some() { "imageGCLowThresholdPercent" } else { "imageGCHighThresholdPercent" };
        found.at(field, "the low threshold (80 by default) must be below the high one (85 by default)");
    }
    found.whole("podsPerCore", c.pods_per_core.as_ref(), 0, MANY);
    found.whole("maxOpenFiles", c.max_open_files.as_ref(), 0, MANY);
    found.whole("readOnlyPort", c.read_only_port.as_ref(), 0, 65_535);
    found.whole("iptablesMasqueradeBit", c.iptables_masquerade_bit.as_ref(), 0, 31);
    found.whole("iptablesDropBit", c.iptables_drop_bit.as_ref(), 0, 31);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::from_documents;

    /// The mistakes of a KubeletConfiguration's text as `line field`.
    fn lines(text: &str) -> (Vec<String>, String) {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let documents = kube_common::config::load_documents(Path::new("n"), &format!("{head}{text}")).unwrap();
        let all = match from_documents(&documents) {
            Ok(_) => String::new(),
            Err(e) => e.to_string(),
        };
        let short = |line: &str| {
            let parts: Vec<&str> = line.splitn(4, ':').collect();
            Some(format!("{}{}", parts.get(1)?.parse::<usize>().ok()? - 2, parts.get(3)?.split(": ").next()?))
        };
        (all.lines().filter_map(short).collect(), all)
    }

    #[test]
    fn every_mistake_of_a_file_is_named_at_once() {
        let text = "podPidsLimit: -7\nevictionHard: {memory.availabl: 100Mi}\ncpuManagerPolicy: bogus\n\
                    hairpinMode: weird\nregisterWithTaints:\n- {key: a, effect: Sometimes}\n- {key: 'b c', effect: NoExecute}\n\
                    systemReserved: {cpu: \"-1\", disk: 1Gi}\ncontainerLogMaxSize: abc\ntlsMinVersion: bogus\n\
                    maxPods: 5\nmaxPods: 6\nenforceNodeAllocatable: [pods, some, kube-reserved]\n\
                    allowedUnsafeSysctls: [kernel.msg*, vm.swappiness]\nimageGCHighThresholdPercent: 70\n\
                    evictionSoft: {nodefs.available: 10%}\nkubeReserved: {memory: x}\nmaxPod: 3\n";
        let (found, all) = lines(text);
        assert_eq!(
            found,
            [
                "1 podPidsLimit",
                "2 evictionHard.memory.availabl",
                "3 cpuManagerPolicy",
                "4 hairpinMode",
                "6 registerWithTaints[0].effect",
                "7 registerWithTaints[1].key",
                "8 systemReserved.cpu",
                "8 systemReserved.disk",
                "9 containerLogMaxSize",
                "10 tlsMinVersion",
                "12 maxPods",
                "13 enforceNodeAllocatable[1]",
                "13 enforceNodeAllocatable[2]",
                "14 allowedUnsafeSysctls[1]",
                "15 imageGCHighThresholdPercent",
                "16 evictionSoft.nodefs.available",
                "17 kubeReserved.memory",
                "18 maxPod",
            ],
            "{all}"
        );
    }

    #[test]
    fn a_full_configuration_of_upstream_is_fine() {
        let text = "podPidsLimit: 4096\nevictionHard: {memory.available: 100Mi, nodefs.available: 10%, pid.available: 5%}\n\
                    evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m30s}\n\
                    cpuManagerPolicy: static\nhairpinMode: hairpin-veth\ntlsMinVersion: VersionTLS12\n\
                    registerWithTaints: [{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]\n\
                    systemReserved: {cpu: 500m, memory: 1Gi, pid: '100', ephemeral-storage: 1Gi}\n\
                    containerLogMaxSize: 10Mi\ncontainerLogMaxFiles: 5\nimageGCHighThresholdPercent: 85\n\
                    imageGCLowThresholdPercent: 80\nenforceNodeAllocatable: []\nmemorySwap: {}\n\
                    topologyManagerPolicy: best-effort\nimageMinimumGCAge: 2m0s\nshutdownGracePeriod: 0s\n\
                    containerLogMonitorInterval: 10s\nreadOnlyPort: 0\n";
        assert_eq!(lines(text).1, "");
    }
}
