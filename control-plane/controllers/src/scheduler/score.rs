//! How well a node suits a pod that it can take. Pure.
//!
//! Upstream counterpart: the Score half of the default plugins, with their weights: TaintToleration 3, NodeAffinity 2,
//! NodeResourcesFit (LeastAllocated) 1, NodeResourcesBalancedAllocation 1, ImageLocality 1.

use super::filter::untolerated;
use super::model::{Cluster, NodeInfo, PodInfo};
use kube_common::scheduling::affinity::term_matches;

/// Best score of one plugin.
const MAX: i64 = 100;
const MB: i64 = 1024 * 1024;
/// Images smaller than this in sum do not matter (upstream's `minThreshold`).
const IMAGE_MIN: i64 = 23 * MB;
/// Nor does more than this per container (upstream's `maxContainerThreshold`).
const IMAGE_MAX: i64 = 1000 * MB;

/// Raw scores of one node; two of them only mean something beside those of the other nodes.
#[derive(Debug, Clone, Copy)]
pub struct Raw {
    taints: i64,
    affinity: i64,
    absolute: i64,
}

/// Judges one node.
pub fn raw(pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> Raw {
    let preferring = untolerated(&node.taints, &pod.tolerations, &["PreferNoSchedule"]).count();
    let liked = pod.preferred.iter().filter(|p| term_matches(&p.preference, &node.name, &node.labels));
    Raw {
        taints: i64::try_from(preferring).unwrap_or(MAX),
        affinity: liked.map(|p| i64::from(p.weight)).sum(),
        absolute: least_allocated(pod, node) + balanced(pod, node) + image_locality(pod, node, cluster),
    }
}

/// Final scores, in the order of `raws`.
pub fn combine(raws: &[Raw]) -> Vec<i64> {
    let most_taints = raws.iter().map(|r| r.taints).max().unwrap_or(0);
    let most_affinity = raws.iter().map(|r| r.affinity).max().unwrap_or(0);
    let score = |raw: &Raw| {
        let taints = if most_taints == 0 { MAX } else { MAX - MAX * raw.taints / most_taints };
        let affinity = if most_affinity == 0 { 0 } else { MAX * raw.affinity / most_affinity };
        3 * taints + 2 * affinity + raw.absolute
    };
    raws.iter().map(score).collect()
}

/// The freer in CPU and memory, the better.
fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let pairs = [
        (node.nonzero.0 + pod.nonzero.0, node.allocatable.milli_cpu),
        (node.nonzero.1 + pod.nonzero.1, node.allocatable.memory),
    ];
    let free = |(used, total): (i64, i64)| if used > total { 0 } else { (total - used) * MAX / total };
    let counted: Vec<i64> = pairs.into_iter().filter(|(_, total)| *total > 0).map(free).collect();
    let number = i64::try_from(counted.len()).unwrap_or(1).max(1);
    counted.iter().sum::<i64>() / number
}

/// The nearer CPU and memory are to the same share, the better. A pod that asks for neither does not tip the balance.
fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    if pod.requests.milli_cpu == 0 && pod.requests.memory == 0 {
        return 0;
    }
    let pairs = [
        (node.requested.milli_cpu + pod.requests.milli_cpu, node.allocatable.milli_cpu),
        (node.requested.memory + pod.requests.memory, node.allocatable.memory),
    ];
    let shares: Vec<f64> = pairs.into_iter().filter(|(_, total)| *total > 0).map(|(u, t)| share(u, t)).collect();
    let deviation = match shares.as_slice() {
        [cpu, memory] => (cpu - memory).abs() / 2.0,
        _ => 0.0,
    };
    #[allow(clippy::cast_possible_truncation)] // Between 0 and 100.
    {
        ((1.0 - deviation) * 100.0) as i64
    }
}

#[allow(clippy::cast_precision_loss)] // A ratio.
fn share(used: i64, total: i64) -> f64 {
    (used as f64 / total as f64).min(1.0)
}

/// The more of its images are there, the better; an image that few nodes have counts less, so that pods do not heap up.
fn image_locality(pod: &PodInfo, node: &NodeInfo, cluster: &Cluster) -> i64 {
    let nodes = i64::try_from(cluster.len()).unwrap_or(1).max(1);
    let present = pod.images.iter().filter_map(|image| {
        let spread = i64::try_from(cluster.nodes_with_image(image)).unwrap_or(0);
        node.images
            .get(image)
            .map(|size| i64::try_from(i128::from(*size) * i128::from(spread) / i128::from(nodes)).unwrap_or(i64::MAX))
    });
    let sum: i64 = present.sum();
    let most = IMAGE_MAX * i64::try_from(pod.images.len()).unwrap_or(1).max(1);
    let counted = sum.clamp(IMAGE_MIN, most);
    MAX * (counted - IMAGE_MIN) / (most - IMAGE_MIN)
}
