//! Amounts of resources, and how much a pod asks for. Pure.
//!
//! Upstream counterpart: `component-helpers/resource.PodRequests` and the scheduler's `Resource`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use crate::quantity::Quantity;

/// What a container without a CPU request counts as when nodes are compared (upstream's 100m).
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// What a container without a memory request counts as when nodes are compared (upstream's 200 MiB).
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts by resource; CPU in thousandths, the rest in units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of local storage.
    pub ephemeral: i64,
    /// How many pods (of a node's allocatable only).
    pub pods: i64,
    /// Extended resources and huge pages.
    pub other: BTreeMap<String, i64>,
}

impl Resources {
    /// Reads a list of an API object; what cannot be parsed counts as nothing (the API refuses it).
    pub fn read(list: Option<&BTreeMap<String, Amount>>) -> Self {
        let mut read = Self::default();
        for (name, amount) in list.into_iter().flatten() {
            let Ok(quantity) = Quantity::parse(&amount.0) else {
                continue;
            };
            match name.as_str() {
                "cpu" => read.milli_cpu = quantity.milli(),
                "memory" => read.memory = quantity.value(),
                "ephemeral-storage" => read.ephemeral = quantity.value(),
                "pods" => read.pods = quantity.value(),
                _ => {
                    read.other.insert(name.clone(), quantity.value());
                }
            }
        }
        read
    }

    /// Adds.
    pub fn add(&mut self, more: &Self) {
        self.milli_cpu += more.milli_cpu;
        self.memory += more.memory;
        self.ephemeral += more.ephemeral;
        for (name, amount) in &more.other {
            *self.other.entry(name.clone()).or_default() += amount;
        }
    }

    /// Takes away.
    pub fn subtract(&mut self, less: &Self) {
        self.milli_cpu -= less.milli_cpu;
        self.memory -= less.memory;
        self.ephemeral -= less.ephemeral;
        for (name, amount) in &less.other {
            *self.other.entry(name.clone()).or_default() -= amount;
        }
    }

    fn raise(&mut self, at_least: &Self) {
        self.milli_cpu = self.milli_cpu.max(at_least.milli_cpu);
        self.memory = self.memory.max(at_least.memory);
        self.ephemeral = self.ephemeral.max(at_least.ephemeral);
        for (name, amount) in &at_least.other {
            let known = self.other.entry(name.clone()).or_default();
            *known = (*known).max(*amount);
        }
    }
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What the pod asks for at its peak: its containers and sidecars together, or a single init container with the
/// sidecars before it, whichever is more; plus overhead. Pod-level CPU and memory replace the sum.
/// `of` says what one container asks for.
fn at_peak(spec: &PodSpec, of: &dyn Fn(&Container) -> Resources) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of(container));
    }
    let (mut sidecars, mut starting) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let mut at_this_point = of(container);
        if is_sidecar(container) {
            running.add(&at_this_point);
            sidecars.add(&at_this_point);
            at_this_point = sidecars.clone();
        } else {
            at_this_point.add(&sidecars);
        }
        starting.raise(&at_this_point);
    }
    running.raise(&starting);
    if let Some(pod_level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        let pod_level_amounts = Resources::read(Some(pod_level));
        if pod_level.contains_key("cpu") {
            running.milli_cpu = pod_level_amounts.milli_cpu;
        }
        if pod_level.contains_key("memory") {
            running.memory = pod_level_amounts.memory;
        }
    }
    running.add(&Resources::read(spec.overhead.as_ref()));
    running
}

fn requests(container: &Container) -> Resources {
    Resources::read(container.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// What the pod asks for.
pub fn pod_requests(spec: &PodSpec) -> Resources {
    at_peak(spec, &requests)
}

/// The same with defaults for containers that ask for nothing, as (thousandths of a CPU, bytes of memory).
pub fn pod_requests_nonzero(spec: &PodSpec) -> (i64, i64) {
    let with_defaults = |container: &Container| {
        let named = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let has = |name: &str| named.is_some_and(|r| r.contains_key(name));
        let mut amounts = requests(container);
        if !has("cpu") {
            amounts.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !has("memory") {
            amounts.memory = DEFAULT_MEMORY;
        }
        amounts
    };
    let peak = at_peak(spec, &with_defaults);
    (peak.milli_cpu, peak.memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(cpu: &str, always: bool) -> serde_json::Value {
        let policy = always.then_some("Always");
        json!({"name": "c", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu, "example.com/x": "1"}}})
    }

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_peak_is_the_larger_of_starting_and_running() {
        let pod = spec(json!({
            "containers": [container("100m", false), container("200m", false)],
            "initContainers": [container("1", false), container("50m", true), container("350m", false)],
            "overhead": {"cpu": "10m"},
        }));
        // Running: 100 + 200 + 50; starting: 1000 alone; 50 + 350 later.
        assert_eq!(pod_requests(&pod).milli_cpu, 1010);
        assert_eq!(pod_requests(&pod).other["example.com/x"], 3);
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        let pod = spec(json!({"containers": [container("100m", false)], "resources": {"requests": {"cpu": "2"}}}));
        assert_eq!(pod_requests(&pod).milli_cpu, 2000);
    }

    #[test]
    fn containers_without_requests_count_with_defaults_when_compared() {
        let pod = spec(json!({"containers": [{"name": "a"}, container("10m", false)]}));
        assert_eq!(pod_requests_nonzero(&pod), (110, 2 * DEFAULT_MEMORY));
        assert_eq!(pod_requests(&pod).memory, 0);
    }
}
