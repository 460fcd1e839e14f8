//! Jobs and daemon sets.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;

use super::{contains, events};

fn job(name: &str, restart: &str, script: &str, spec: &str) -> String {
    format!(
        r#"apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
{spec}
  template:
    spec:
      restartPolicy: {restart}
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: busybox:1.28
          command: ["sh", "-c", {script}]
          volumeMounts:
            - name: marks
              mountPath: /marks
      volumes:
        - name: marks
          hostPath:
            path: /tmp/jobs-{name}
            type: DirectoryOrCreate
"#,
        script = serde_json::json!(script),
    )
}

pub fn completes(lab: &Lab) -> Result<()> {
    let space = lab.space("jobs")?;
    space.apply(&job("three", "Never", "echo done >> /marks/done", "  completions: 3\n  parallelism: 2"))?;
    space.kubectl(&["wait", "--for=condition=complete", "job/three", "--timeout=90s"])?;
    let done = std::fs::read_to_string(lab.folder()?.join("node-1/tmp/jobs-three/done"))?;
    ensure!(done == "done\ndone\ndone\n", "it did not run three times: {done:?}");
    let found = space.json(&["get", "job", "three"])?;
    ensure!(found["status"]["succeeded"] == 3 && found["status"]["completionTime"].is_string(), "{}", found["status"]);
    let pods = space.pods("batch.kubernetes.io/job-name=three")?;
    ensure!(pods.len() == 3 && pods.iter().all(|pod| pod["status"]["phase"] == "Succeeded"), "{pods:?}");
    let table = space.kubectl(&["get", "job", "three"])?;
    contains(&table, &["Complete", "3/3"])
}

pub fn retries(lab: &Lab) -> Result<()> {
    let space = lab.space("retries")?;
    // The third attempt in the same pod succeeds.
    let script = "echo try >> /marks/tries; [ $(wc -l < /marks/tries) -ge 3 ]";
    space.apply(&job("stubborn", "OnFailure", script, "  backoffLimit: 5"))?;
    space.apply(&job("hopeless", "Never", "exit 9", "  backoffLimit: 1"))?;
    space.apply(&job("late", "Never", "sleep 600", "  activeDeadlineSeconds: 3"))?;
    space.kubectl(&["wait", "--for=condition=failed", "job/hopeless", "--timeout=90s"])?;
    let pods = space.pods("batch.kubernetes.io/job-name=hopeless")?;
    ensure!(pods.len() == 2 && pods.iter().all(|pod| pod["status"]["phase"] == "Failed"), "{} pods", pods.len());
    let found = space.json(&["get", "job", "hopeless"])?;
    ensure!(found["status"]["failed"] == 2, "{}", found["status"]);
    contains(&events(&space)?, &["BackoffLimitExceeded: Job has reached the specified backoff limit"])?;
    space.kubectl(&["wait", "--for=condition=failed", "job/late", "--timeout=60s"])?;
    contains(&events(&space)?, &["DeadlineExceeded: Job was active longer than specified deadline"])?;
    space.kubectl(&["wait", "--for=condition=complete", "job/stubborn", "--timeout=120s"])?;
    let pods = space.pods("batch.kubernetes.io/job-name=stubborn")?;
    ensure!(pods.len() == 1, "{} pods", pods.len());
    let count = super::status(&pods[0])["restartCount"].as_i64();
    ensure!(count == Some(2), "{count:?} restarts");
    Ok(())
}

const DAEMON: &str = r#"apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: watcher
spec:
  selector:
    matchLabels:
      app: watcher
  template:
    metadata:
      labels:
        app: watcher
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: busybox:1.28
          command: ["sh", "-c", "sleep 10000"]
"#;

pub fn daemon_set(lab: &Lab) -> Result<()> {
    let space = lab.space("daemons")?;
    let before = lab.json(&["get", "nodes"])?["items"].as_array().context("no nodes")?.len();
    space.apply(DAEMON)?;
    space.kubectl(&["rollout", "status", "daemonset/watcher", "--timeout=60s"])?;
    ensure!(space.pods("app=watcher")?.len() == before);
    lab.lab(&["add-node"])?;
    let nodes = lab.wait("the new node has one too", 60, || {
        let pods = space.pods("app=watcher")?;
        let ready = pods.iter().filter(|pod| super::status(pod)["ready"] == true);
        let nodes: std::collections::BTreeSet<String> =
            ready.filter_map(|pod| pod["spec"]["nodeName"].as_str().map(ToOwned::to_owned)).collect();
        Ok((nodes.len() == before + 1).then_some(nodes))
    })?;
    ensure!(nodes.contains(&format!("node-{}", before + 1)), "{nodes:?}");
    let table = space.kubectl(&["get", "daemonset", "watcher"])?;
    contains(&table, &["DESIRED", "NODE SELECTOR"])?;
    space.kubectl(&["delete", "daemonset", "watcher", "--timeout=60s"])?;
    lab.until("its pods go with it", 60, || Ok(space.pods("app=watcher")?.is_empty()))
}
