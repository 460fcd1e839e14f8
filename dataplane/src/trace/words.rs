//! A walk in words.

use std::collections::BTreeMap;

use keelson_netfilter::nft::walk::{Packet, Step, Walked, What};
use keelson_netfilter::nft::{Hook, OwnedData, Verdict};

use super::frontend;
use crate::model::FrontendKey;
use crate::model::types::Protocol;
use crate::nftables::layout::{
    CHAIN_SOURCE_RANGES, LIST_MAPS, Pick, SET_CLUSTER_IPS, SET_HAIRPIN, SET_LOCAL_SOURCES, SET_NODEPORT_ADDRESSES,
    SET_SERVICE_CIDRS, VerdictMap,
};
use crate::nftables::state::{AFFINITY, V};
use crate::planner::Class;

type Names = BTreeMap<FrontendKey, String>;

fn protocol(number: u8) -> String {
    Protocol::from_number(number).map_or_else(|| format!("protocol {number}"), |p| p.name().to_owned())
}

/// The first line: what is asked.
pub(super) fn question(packet: &Packet, names: &Names) -> String {
    let by = match &packet.interface {
        Some(name) => format!("coming in by {name}"),
        None => "sent by this node itself".to_owned(),
    };
    let name = [false, true]
        .into_iter()
        .find_map(|node_port| names.get(&frontend(packet.destination, packet.protocol, node_port)?))
        .map_or_else(String::new, |name| format!(" ({name})"));
    format!("{} from {} to {}{name}, {by}", protocol(packet.protocol), packet.source.ip(), packet.destination)
}

fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "before routing",
        Hook::Input => "on its way in to this node",
        Hook::Forward => "on its way through this node",
        Hook::Output => "on its way out of this node",
        Hook::Postrouting => "after routing",
    }
}

/// The steps, a line each. What says nothing by itself (a call of a chain, a lookup that is told by what follows) has none.
pub(super) fn steps(walked: &Walked, packet: &Packet, names: &Names) -> Vec<String> {
    let mut lines = Vec::new();
    let mut heading = None;
    for step in &walked.steps {
        if let What::Hook(at) = step.what {
            heading = Some(format!("{} ({}):", hook(at), step.chain));
            continue;
        }
        let Some(text) = line(step, packet, names) else { continue };
        lines.extend(heading.take());
        lines.push(format!("  {text}  [{}]", step.chain));
    }
    if lines.is_empty() {
        lines.push("no rule of the dataplane concerns it".to_owned());
    }
    lines
}

fn line(step: &Step, packet: &Packet, names: &Names) -> Option<String> {
    Some(match &step.what {
        What::Hook(_) | What::Into(_) => return None,
        What::Found { set, data, .. } => found(set, data, packet, names)?,
        What::Chosen { modulus: 1, .. } => "the only endpoint".to_owned(),
        What::Chosen { modulus, .. } => format!("one of {modulus} endpoints, each as likely as the others"),
        What::Mark(0) => "the mark is taken off again".to_owned(),
        What::Mark(mark) => format!("marked for masquerading (mark {mark:#x})"),
        What::Noted(set) => format!("the client is noted in {set}, and will be sent there again"),
        What::Dnat(to) => format!("the destination becomes {to}"),
        What::Masquerade => "masqueraded: the source becomes the address of the interface it leaves by".to_owned(),
        What::Reject(_) => "refused".to_owned(),
        What::Drop if Pick::parse(&step.chain).is_some() => {
            "dropped: its endpoint list is just being changed; the client sends it again".to_owned()
        }
        What::Drop if step.chain == CHAIN_SOURCE_RANGES => {
            "dropped: its source is not in the Service's loadBalancerSourceRanges".to_owned()
        }
        What::Drop => "dropped".to_owned(),
    })
}

fn found(set: &str, data: &OwnedData, packet: &Packet, names: &Names) -> Option<String> {
    let is = |map: VerdictMap| [false, true].map(|node_port| map.name(node_port)).contains(&set);
    let name = |node_port| frontend(packet.destination, packet.protocol, node_port).and_then(|key| names.get(&key));
    let verdict = || match data {
        OwnedData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => chain.clone(),
        other => format!("{other:?}"),
    };
    if is(VerdictMap::Services) {
        let node_port = set == VerdictMap::Services.name(true);
        let what = if node_port { "a node port" } else { "an address" };
        let of = name(node_port).map_or_else(|| "a Service".to_owned(), |name| format!("Service {name}"));
        return Some(format!("its destination is {what} of {of}: {}", class(&verdict())));
    }
    if set == VerdictMap::Guarded.name(false) {
        return Some(format!("its source is in the Service's loadBalancerSourceRanges: {}", class(&verdict())));
    }
    if is(VerdictMap::Inside) {
        return Some(format!("it comes from inside the cluster: {}", class(&verdict())));
    }
    if is(VerdictMap::Local) {
        return Some(format!("it comes from outside: {}", class(&verdict())));
    }
    if is(VerdictMap::NoEndpoints) {
        return Some(match data {
            OwnedData::Verdict(Verdict::Drop) => {
                "the Service has no endpoint that its traffic policy allows".to_owned()
            }
            _ => "the Service has no endpoint at all".to_owned(),
        });
    }
    // The destination that follows says what was found.
    if LIST_MAPS.iter().any(|map| [false, true].map(|node_port| map.name(node_port)).contains(&set)) {
        return None;
    }
    Some(match set {
        SET_LOCAL_SOURCES => "its source is a pod's address".to_owned(),
        SET_NODEPORT_ADDRESSES => "its destination is an address on which node ports answer".to_owned(),
        SET_HAIRPIN => "an endpoint reaches itself through its Service".to_owned(),
        SET_CLUSTER_IPS => "the Service with this cluster address has no such port".to_owned(),
        SET_SERVICE_CIDRS => "no Service has this cluster address".to_owned(),
        _ if set.starts_with(AFFINITY) => format!("the client is known in {set}, and sticks to its endpoint"),
        _ if set.starts_with("__map") => return None,
        _ => format!("found in {set}"),
    })
}

/// What a verdict leads to.
fn class(chain: &str) -> String {
    let verdict = [false, true].map(|node_port| V::of_chain(chain, node_port)).into_iter().find(|v| *v != V::Foreign);
    let (class, sticky) = match verdict {
        Some(V::Pick(class, _)) => (class, false),
        Some(V::Sticky(_, class)) => (class, true),
        Some(V::ExtLocal) => return "externalTrafficPolicy Local, so its source decides".to_owned(),
        Some(V::Guarded) => return "it has loadBalancerSourceRanges, so its source is looked at".to_owned(),
        Some(V::Refuse) => return "refused".to_owned(),
        Some(V::Drop | V::Foreign) | None => return format!("goes to {chain}"),
    };
    let text = match class {
        Class::Cluster => "endpoints by the internal policy, masqueraded unless it comes from a pod",
        Class::External => "endpoints by the Cluster policy, always masqueraded",
        Class::Inside => "all endpoints, source kept",
        Class::Local => "this node's endpoints, source kept",
    };
    let affinity = if sticky { "; clients stick to their endpoint" } else { "" };
    format!("{text}{affinity}")
}
