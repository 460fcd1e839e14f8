//! How long containerd worked on each pod, read from its own log: the calls that make a pod, with the times at which
//! they came in and were answered. So the agent's calls are measured as the runtime sees them, without a proxy between.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

/// Calls that make a pod with one container: its sandbox, its container, and that one's start.
const CALLS: u32 = 3;

#[derive(Default)]
struct Pod {
    answered: u32,
    time: Duration,
}

/// Time inside the calls, by name of the pod, of pods that were fully made. Pods must have different names.
pub fn times(log: &str) -> BTreeMap<String, Duration> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    // The pod to which a sandbox or a container belongs, and when the call about it came in.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut began: BTreeMap<String, Timestamp> = BTreeMap::new();
    for (at, message) in log.lines().filter_map(entry) {
        let Some(call) = call(&message) else { continue };
        let name = match &call.about {
            About::Pod(name) => Some(name.clone()),
            About::Id(id) => names.get(*id).cloned(),
        };
        let Some(name) = name else { continue };
        let key = format!("{} {name}", call.kind);
        if !call.answered {
            began.insert(key, at);
            continue;
        }
        if let Some(id) = call.made {
            names.insert(id.to_owned(), name.clone());
        }
        if let Some(start) = began.remove(&key) {
            let pod = pods.entry(name).or_default();
            pod.answered += 1;
            pod.time += Duration::try_from(at.duration_since(start)).unwrap_or_default();
        }
    }
    pods.into_iter().filter(|(_, pod)| pod.answered == CALLS).map(|(name, pod)| (name, pod.time)).collect()
}

enum About<'a> {
    Pod(String),
    Id(&'a str),
}

struct Call<'a> {
    kind: &'static str,
    about: About<'a>,
    made: Option<&'a str>,
    answered: bool,
}

fn call(message: &str) -> Option<Call<'_>> {
    // Before 1.7 the letter case of the first one differs between its request and its answer.
    let sandbox = "RunPodSandbox for ";
    if message.get(..sandbox.len()).is_some_and(|start| start.eq_ignore_ascii_case(sandbox)) {
        let name = between(message, "{Name:", ",")?.to_owned();
        let made = between(message, " returns sandbox id \"", "\"");
        return Some(Call { kind: "sandbox", about: About::Pod(name), made, answered: made.is_some() });
    }
    if message.starts_with("CreateContainer within sandbox ") {
        let made = between(message, " returns container id \"", "\"");
        let about = About::Id(between(message, "\"", "\"")?);
        return Some(Call { kind: "create", about, made, answered: made.is_some() });
    }
    if message.starts_with("StartContainer for ") {
        let about = About::Id(between(message, "\"", "\"")?);
        return Some(Call { kind: "start", about, made: None, answered: message.ends_with(" returns successfully") });
    }
    None
}

fn entry(line: &str) -> Option<(Timestamp, String)> {
    let at = between(line, "time=\"", "\"")?.parse().ok()?;
    let message = line.split_once(" msg=\"")?.1.trim_end().strip_suffix('"')?;
    Some((at, message.replace("\\\"", "\"")))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = text.split_once(before)?.1;
    Some(rest.split_once(after)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_interleaved_pods_are_told_apart() {
        let line = |second: u32, message: &str| {
            let message = message.replace('"', "\\\"");
            format!("time=\"2026-01-02T03:04:{second:02}.5Z\" level=info msg=\"{message}\"\n")
        };
        let pod = |name: &str| format!("&PodSandboxMetadata{{Name:{name},Uid:u,Namespace:n,Attempt:0,}}");
        let log = [
            line(1, &format!("RunPodsandbox for {}", pod("a"))),
            line(2, &format!("RunPodSandbox for {}", pod("b"))),
            line(3, &format!("RunPodSandbox for {} returns sandbox id \"sa\"", pod("a"))),
            "no entry\n".to_owned(),
            line(4, "CreateContainer within sandbox \"sa\" for container &ContainerMetadata{Name:m,Attempt:0,}"),
            line(6, &format!("RunPodSandbox for {} returns sandbox id \"sb\"", pod("b"))),
            line(
                7,
                "CreateContainer within sandbox \"sa\" for &ContainerMetadata{Name:m,} returns container id \"ca\"",
            ),
            line(8, "StartContainer for \"ca\""),
            line(9, "StartContainer for \"ca\" returns successfully"),
        ]
        .concat();
        // 2 for the sandbox, 3 for the container, 1 for its start; `b` never got its container.
        assert_eq!(times(&log), BTreeMap::from([("a".to_owned(), Duration::from_secs(6))]));
    }
}
