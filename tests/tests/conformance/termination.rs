//! How containers end, and what is told of it.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::objects::{first, pod, shell};
use serde_json::{Value, json};

tests![restart_policies, message_empty_on_success, message_from_file, message_from_log, message_as_another_user];

/// Fails the first time, ends well the second time, and then stays.
const THREE_LIVES: &str =
    "echo x >> /data/lives; case $(wc -l < /data/lives) in 1) exit 1;; 2) exit 0;; esac; sleep 100000";

// [sig-node] Container Runtime blackbox test when starting a container that exits should run with the expected status [NodeConformance] [Conformance]
fn restart_policies(lab: &Lab) -> Result<()> {
    let space = lab.quarter("restarts")?;
    let cases = [
        ("always", "Always", "Running", 2),
        ("on-failure", "OnFailure", "Succeeded", 1),
        ("never", "Never", "Failed", 0),
    ];
    for (name, policy, _, _) in cases {
        let mut container = shell(THREE_LIVES);
        container["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        let mut pod = pod(name, container);
        pod["spec"]["restartPolicy"] = json!(policy);
        pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
        space.make("pods", &pod)?;
    }
    for (name, _, phase, restarts) in cases {
        let pod = space.pod_until(name, &format!("is {phase} after {restarts} restarts"), |pod| {
            let state = &first(pod)["state"];
            pod["status"]["phase"] == phase
                && first(pod)["restartCount"] == restarts
                && (state["running"].is_object() || phase != "Running" && state["terminated"].is_object())
        })?;
        let code = first(&pod)["state"]["terminated"]["exitCode"].clone();
        let expected = match phase {
            "Failed" => json!(1),
            "Succeeded" => json!(0),
            _ => Value::Null,
        };
        ensure!(code == expected, "{}", first(&pod));
        ensure!(first(&pod)["ready"] == (phase == "Running"), "{}", first(&pod));
    }
    Ok(())
}

/// Runs a container and gives its phase and its last words.
fn last_words(lab: &Lab, name: &str, script: &str, more: Value) -> Result<(String, String)> {
    let space = lab.quarter(name)?;
    let mut container = shell(script);
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    space.make("pods", &pod("speaker", container))?;
    let pod = space.ended("speaker")?;
    let message = first(&pod)["state"]["terminated"]["message"].as_str().unwrap_or_default();
    Ok((pod["status"]["phase"].as_str().unwrap_or_default().to_owned(), message.to_owned()))
}

// [sig-node] Container Runtime blackbox test on terminated container should report termination message as empty when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance] [Conformance]
fn message_empty_on_success(lab: &Lab) -> Result<()> {
    let policy = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let (phase, message) = last_words(lab, "words-none", "echo DONE", policy)?;
    ensure!(phase == "Succeeded" && message.is_empty(), "{phase}: {message:?}");
    Ok(())
}

// [sig-node] Container Runtime blackbox test on terminated container should report termination message from file when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance] [Conformance]
fn message_from_file(lab: &Lab) -> Result<()> {
    let policy = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let script = "echo -n OK > /dev/termination-log; echo DONE";
    let (phase, message) = last_words(lab, "words-file", script, policy)?;
    ensure!(phase == "Succeeded" && message == "OK", "{phase}: {message:?}");
    Ok(())
}

// [sig-node] Container Runtime blackbox test on terminated container should report termination message from log output if TerminationMessagePolicy FallbackToLogsOnError is set [NodeConformance] [Conformance]
fn message_from_log(lab: &Lab) -> Result<()> {
    let policy = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let (phase, message) = last_words(lab, "words-log", "echo -n DONE; exit 1", policy)?;
    ensure!(phase == "Failed" && message == "DONE", "{phase}: {message:?}");
    Ok(())
}

// [sig-node] Container Runtime blackbox test on terminated container should report termination message if TerminationMessagePath is set as non-root user and at a non-default path [NodeConformance] [Conformance]
fn message_as_another_user(lab: &Lab) -> Result<()> {
    let more = json!({
        "terminationMessagePath": "/dev/termination-custom-log",
        "securityContext": { "runAsUser": 1000 },
    });
    let script = "[ $(id -u) = 1000 ] && echo -n DONE > /dev/termination-custom-log";
    let (phase, message) = last_words(lab, "words-user", script, more)?;
    ensure!(phase == "Succeeded" && message == "DONE", "{phase}: {message:?}");
    Ok(())
}
