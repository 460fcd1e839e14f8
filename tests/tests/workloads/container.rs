//! What a container is given and what it is kept from: seen from inside it, and from the node's cgroups.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use serde_json::Value;

use super::{contains, events, status};

/// The capabilities of an ordinary container, as Docker chose them.
const DEFAULT_CAPABILITIES: &str = "CapEff:\t00000000a80425fb";

/// A busybox pod with a security context for itself and one for its container.
fn secured(name: &str, script: &str, pod: &str, container: &str) -> String {
    let manifest = manifests::shell(name, "Never", script);
    let manifest = manifest.replace("spec:\n", &format!("spec:\n  securityContext: {pod}\n"));
    format!("{manifest}      securityContext: {container}\n")
}

const LOOK: &str = "id; grep -E '^(Cap(Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status; ";

pub fn restricted(lab: &Lab) -> Result<()> {
    let space = lab.space("restricted")?;
    let script =
        format!("{LOOK} touch /here 2>&1; ls -ldn /data; touch /data/file; ls -ln /data/file; mount | grep ' on / '");
    let manifest = secured(
        "locked",
        &script,
        "{runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000], runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}",
        "{readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}",
    );
    let manifest =
        manifest.replace("  containers:\n", "  volumes:\n    - name: data\n      emptyDir: {}\n  containers:\n");
    space.apply(&format!("{manifest}      volumeMounts:\n        - name: data\n          mountPath: /data\n"))?;
    let text = space.output("locked")?;
    contains(
        &text,
        &[
            "uid=1000 gid=3000",
            "2000",
            "4000",
            // The bounding set holds what the container may have; a user other than root has none of it in effect.
            "CapBnd:\t0000000000000400",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
            "touch: /here: Read-only file system",
        ],
    )?;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let data = lines.iter().find(|words| words.last() == Some(&"/data")).context("no /data")?;
    // The volume belongs to fsGroup, and what is made in it too.
    ensure!(data[0] == "drwxrwsrwx" && data[3] == "2000", "{data:?}");
    let file = lines.iter().find(|words| words.last() == Some(&"/data/file")).context("no /data/file")?;
    ensure!(file[2] == "1000" && file[3] == "2000", "{file:?}");
    ensure!(
        lines.iter().any(|words| words.contains(&"/") && words.last().is_some_and(|options| options.contains("ro,"))),
        "{text}"
    );
    Ok(())
}

pub fn privileges(lab: &Lab) -> Result<()> {
    let space = lab.space("privileges")?;
    let script = format!("{LOOK} cat /proc/sys/kernel/core_pattern > /dev/null && echo readable; ls /dev | wc -l");
    space.apply(&secured("plain", &script, "{}", "{}"))?;
    space.apply(&secured("strong", &script, "{}", "{privileged: true}"))?;
    space.apply(&secured(
        "chosen",
        LOOK,
        "{seccompProfile: {type: Unconfined}}",
        "{runAsUser: 7, capabilities: {drop: [CHOWN], add: [SYS_TIME]}}",
    ))?;
    let plain = space.output("plain")?;
    contains(&plain, &["uid=0(root)", DEFAULT_CAPABILITIES, "NoNewPrivs:\t0", "Seccomp:\t0"])?;
    let strong = space.output("strong")?;
    contains(&strong, &["uid=0(root)", "NoNewPrivs:\t0", "Seccomp:\t0"])?;
    let set = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:\t")));
        u64::from_str_radix(value.unwrap_or_default().trim(), 16).with_context(|| format!("no {name} in {text}"))
    };
    // Everything that this machine's own root has.
    let own = set(&std::fs::read_to_string("/proc/self/status")?, "CapBnd")?;
    ensure!(set(&strong, "CapEff")? & own == own, "{strong}");
    let devices = |text: &str| text.lines().find_map(|line| line.trim().parse::<u32>().ok()).unwrap_or(0);
    ensure!(devices(&strong) > devices(&plain), "a privileged container sees no more devices: {plain}{strong}");
    let chosen = space.output("chosen")?;
    // Without CHOWN (bit 0), with SYS_TIME (bit 25).
    contains(&chosen, &["uid=7", "CapBnd:\t00000000aa0425fa"])
}

pub fn never_root(lab: &Lab) -> Result<()> {
    let space = lab.space("never-root")?;
    space.apply(&secured("root", "id", "{runAsNonRoot: true}", "{}"))?;
    let waiting = lab.wait("it is refused", 60, || {
        let pod = space.json(&["get", "pod", "root"])?;
        let waiting = status(&pod)["state"]["waiting"].clone();
        Ok((waiting["reason"] == "CreateContainerConfigError").then_some(waiting))
    })?;
    let message = waiting["message"].as_str().unwrap_or_default();
    ensure!(message.contains("container has runAsNonRoot and image will run as root"), "{message}");
    Ok(())
}

/// One file of a cgroup of a pod (or of one of its containers) on the node, by the hierarchy's name in version 1.
fn cgroup(lab: &Lab, folder: &str, controller: &str, file: &str) -> Result<String> {
    let script = format!("cat $(find /sys/fs/cgroup/{controller}/ -type d -name '{folder}' | head -n 1)/{file}");
    Ok(lab.node("node-1", &["sh", "-c", &script])?.trim().to_owned())
}

const LIMITED: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: limited
spec:
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c", "sleep 1000"]
      resources:
        requests:
          cpu: 250m
          memory: 32Mi
        limits:
          cpu: 500m
          memory: 64Mi
    - name: side
      image: busybox:1.28
      command: ["sh", "-c", "sleep 1000"]
      resources:
        requests:
          cpu: 100m
        limits:
          cpu: 100m
          memory: 16Mi
  terminationGracePeriodSeconds: 0
"#;

pub fn resources(lab: &Lab) -> Result<()> {
    let space = lab.space("resources")?;
    space.apply(LIMITED)?;
    let pod = space.ready_pod("limited")?;
    ensure!(pod["status"]["qosClass"] == "Burstable", "{}", pod["status"]["qosClass"]);
    let id = |name: &str| -> Result<String> {
        let all = pod["status"]["containerStatuses"].as_array().context("no containers")?;
        let status = all.iter().find(|status| status["name"] == name).context("no such container")?;
        Ok(status["containerID"].as_str().context("no ID")?.trim_start_matches("containerd://").to_owned())
    };
    let uid = format!("pod{}", pod["metadata"]["uid"].as_str().context("no UID")?);
    let version_2 = !lab.node("node-1", &["sh", "-c", "ls /sys/fs/cgroup"])?.lines().any(|name| name == "memory");
    // Shares of a request are milli * 1024 / 1000; a pod's are the sum of its containers'.
    let (main, side) = (id("main")?, id("side")?);
    let (main, side, uid) = (main.as_str(), side.as_str(), uid.as_str());
    let expected: &[(&str, &str, &str, &str)] = if version_2 {
        &[
            (main, "", "cpu.max", "50000 100000"),
            (main, "", "memory.max", "67108864"),
            (side, "", "cpu.max", "10000 100000"),
            (uid, "", "cpu.max", "60000 100000"),
            (uid, "", "memory.max", "83886080"),
        ]
    } else {
        &[
            (main, "cpu", "cpu.shares", "256"),
            (main, "cpu", "cpu.cfs_quota_us", "50000"),
            (main, "cpu", "cpu.cfs_period_us", "100000"),
            (main, "memory", "memory.limit_in_bytes", "67108864"),
            (side, "cpu", "cpu.shares", "102"),
            (side, "cpu", "cpu.cfs_quota_us", "10000"),
            (side, "memory", "memory.limit_in_bytes", "16777216"),
            (uid, "cpu", "cpu.shares", "358"),
            (uid, "cpu", "cpu.cfs_quota_us", "60000"),
            (uid, "memory", "memory.limit_in_bytes", "83886080"),
        ]
    };
    for (folder, controller, file, value) in expected {
        let found = cgroup(lab, folder, controller, file).with_context(|| format!("{file} of {folder}"))?;
        ensure!(found == *value, "{file} of {folder} is {found}, not {value}");
    }
    // 1000 - 1000 * request / capacity, between 3 and 999: with 32 MiB of gigabytes it is near the top.
    let pid = lab.pod_pid(main)?;
    let score: i32 = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?.trim().parse()?;
    ensure!((900..=999).contains(&score), "oom_score_adj is {score}");
    Ok(())
}

pub fn out_of_memory(lab: &Lab) -> Result<()> {
    let space = lab.space("oom")?;
    // tail keeps as much as it is to print at an end that never comes.
    let manifest = manifests::shell("greedy", "Never", "exec tail -c 200000000 /dev/zero");
    space.apply(&format!("{manifest}      resources:\n        limits:\n          memory: 24Mi\n"))?;
    let ended = lab.wait("it ends", 60, || {
        let pod = space.json(&["get", "pod", "greedy"])?;
        let ended = status(&pod)["state"]["terminated"].clone();
        Ok(ended.is_object().then_some(ended))
    })?;
    ensure!(ended["reason"] == "OOMKilled" && ended["exitCode"] == 137, "{ended}");
    Ok(())
}

const ON_THE_HOST: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: host
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: keelson.dev/test-server:latest
      imagePullPolicy: IfNotPresent
      args: ["--http=18080"]
      ports:
        - containerPort: 18080
"#;

pub fn host_network(lab: &Lab) -> Result<()> {
    let space = lab.space("host-network")?;
    space.apply(ON_THE_HOST)?;
    let pod = space.ready_pod("host")?;
    let address = lab.address("node-1")?;
    for field in ["podIP", "hostIP"] {
        ensure!(pod["status"][field] == address.to_string().as_str(), "{field}: {}", pod["status"][field]);
    }
    ensure!(pod["spec"]["containers"][0]["ports"][0]["hostPort"] == 18080, "{}", pod["spec"]["containers"][0]["ports"]);
    let report =
        lab.wait("it answers from outside", 15, || net::report(From::Host, (address, 18080).into()).map(Some))?;
    ensure!(report["hostname"] == "node-1", "{report}");
    let (_, environment) = net::get(From::Host, (address, 18080).into(), "/env")?;
    contains(&environment, &["KUBERNETES_SERVICE_HOST"])?;
    // The address of a pod outlives no pod, that of the node does.
    space.kubectl(&["delete", "pod", "host", "--timeout=60s"])?;
    ensure!(lab.node("node-1", &["ip", "-o", "address"])?.contains(&address.to_string()));
    Ok(())
}

fn image_pod(name: &str, image: &str, policy: &str) -> String {
    manifests::shell(name, "Never", "echo ran")
        .replace("image: busybox:1.28\n", &format!("image: {image}\n      imagePullPolicy: {policy}\n"))
}

fn waiting_reason(pod: &Value) -> String {
    status(pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default().to_owned()
}

fn is_waiting_for(space: &Space<'_>, name: &str, reason: &str) -> Result<()> {
    let mut last = String::new();
    let result = space.lab.until(&format!("{name} waits with {reason}"), 60, || {
        last = waiting_reason(&space.json(&["get", "pod", name])?);
        Ok(last == reason)
    });
    result.with_context(|| format!("last it was {last:?}"))
}

pub fn pulls(lab: &Lab) -> Result<()> {
    let space = lab.space("pulls")?;
    space.apply(&image_pod("never-there", "redis:6", "Never"))?;
    is_waiting_for(&space, "never-there", "ErrImageNeverPull")?;
    space.apply(&image_pod("never", "busybox:1.28", "Never"))?;
    ensure!(space.output("never")? == "ran\n");
    space.apply(&image_pod("present", "busybox:1.28", "IfNotPresent"))?;
    ensure!(space.output("present")? == "ran\n");
    space.apply(&image_pod("always", "busybox:latest", "Always"))?;
    ensure!(space.output("always")? == "ran\n");
    // Nobody has pulled this one before.
    space.apply(&image_pod("missing", "redis:6", "IfNotPresent"))?;
    ensure!(space.output("missing")? == "ran\n");
    // Now it is there, so the pod that never pulls can run.
    ensure!(space.output("never-there")? == "ran\n");
    space.apply(&image_pod("odd", "Not/A:Name:At/All", "Always"))?;
    is_waiting_for(&space, "odd", "InvalidImageName")?;
    contains(
        &events(&space)?,
        &[
            "ErrImageNeverPull",
            "Pulled: Container image \"busybox:1.28\" already present on machine",
            "Pulling: Pulling image \"busybox:latest\"",
            "Pulled: Successfully pulled image \"busybox:latest\" in ",
            "Pulling: Pulling image \"redis:6\"",
        ],
    )
}

fn terminated(space: &Space<'_>, name: &str) -> Result<Value> {
    space.lab.wait(&format!("{name} has failed"), 60, || {
        let pod = space.json(&["get", "pod", name])?;
        let ended = status(&pod)["state"]["terminated"].clone();
        Ok(ended.is_object().then_some(ended))
    })
}

pub fn last_words(lab: &Lab) -> Result<()> {
    let space = lab.space("last-words")?;
    let fallback = "      terminationMessagePolicy: FallbackToLogsOnError\n";
    let pods: &[(&str, &str, &str)] = &[
        ("from-log", "for i in $(seq 1 100); do echo line $i; done; exit 3", fallback),
        ("no-error", "echo all is well", fallback),
        ("both", "echo to the log; echo to the file > /dev/termination-log; exit 3", fallback),
        ("elsewhere", "echo over here > /tmp/words; exit 3", "      terminationMessagePath: /tmp/words\n"),
        ("long", "head -c 6000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 3", ""),
    ];
    for (name, script, more) in pods {
        space.apply(&format!("{}{more}", manifests::shell(name, "Never", script)))?;
    }
    let message = |name: &str| -> Result<String> {
        Ok(terminated(&space, name)?["message"].as_str().unwrap_or_default().to_owned())
    };
    let log = message("from-log")?;
    let lines: Vec<&str> = log.lines().collect();
    ensure!(lines.len() == 80 && lines[0] == "line 21" && lines[79] == "line 100", "{log:?}");
    ensure!(message("no-error")?.is_empty() && message("both")? == "to the file\n");
    ensure!(message("elsewhere")? == "over here\n");
    ensure!(message("long")?.len() == 4096);
    Ok(())
}

/// A pod that no scheduler has looked at and that does not fit: refused with upstream's words, and nothing of it stays; one that suits
/// comes as soon as a pod that is ending has made room.
pub fn admission(lab: &Lab) -> Result<()> {
    let space = lab.space("admission")?;
    let bound = |name: &str, more: &str| {
        manifests::shell(name, "Never", "trap '' TERM; while true; do sleep 1; done")
            .replace("spec:\n", &format!("spec:\n  nodeName: node-1\n{more}"))
    };
    let asking =
        |name: &str, cpu: &str| format!("{}      resources:\n        requests: {{cpu: {cpu}}}\n", bound(name, ""));
    let cores: f64 = lab.kubectl(&["get", "node", "node-1", "-o", "jsonpath={.status.allocatable.cpu}"])?.parse()?;
    space.apply(&asking("greedy", "1000"))?;
    space.apply(&bound("elsewhere", "  nodeSelector: {place: elsewhere}\n"))?;
    for (pod, reason, message) in [
        ("greedy", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: "),
        (
            "elsewhere",
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ] {
        let found = lab.wait(&format!("{pod} is refused"), 30, || {
            let pod = space.json(&["get", "pod", pod])?;
            Ok((pod["status"]["phase"] == "Failed").then_some(pod))
        })?;
        let said = found["status"]["message"].as_str().unwrap_or_default();
        ensure!(found["status"]["reason"] == reason && said.starts_with(message), "{}", found["status"]);
    }
    contains(
        &events(&space)?,
        &["OutOfcpu: Node didn't have enough resource: cpu", "NodeAffinity: Predicate NodeAffinity failed"],
    )?;
    let most = format!("{}m", (cores * 1000.0 * 0.6).round());
    space.apply(&asking("first", &most).replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 4"))?;
    space.ready_pod("first")?;
    space.kubectl(&["delete", "pod", "first", "--wait=false"])?;
    space.apply(&asking("second", &most))?;
    let second = space.ready_pod("second")?;
    ensure!(second["status"]["reason"].is_null(), "{}", second["status"]);
    Ok(())
}
