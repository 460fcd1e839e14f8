//! `$(NAME)` in variables, commands, arguments and sub-paths.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{first, pod, pod_of};
use serde_json::{Value, json};

tests![
    failing_sub_path_is_mended,
    writes_below_a_sub_path,
    absolute_sub_path,
    backticks_in_a_sub_path,
    sub_path,
    variables,
    arguments,
    command,
];

// [sig-node] Variable Expansion should allow composing env vars into new env vars [NodeConformance] [Conformance]
fn variables(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-vars")?;
    let env = json!([
        { "name": "FOO", "value": "foo-value" },
        { "name": "BAR", "value": "bar-value" },
        { "name": "FOOBAR", "value": "$(FOO);;$(BAR)" },
        { "name": "KEPT", "value": "$$(FOO) $(NOBODY)" },
    ]);
    let said = space.says(&pod("vars", json!({ "command": ["env"], "env": env })))?;
    for line in ["FOO=foo-value", "BAR=bar-value", "FOOBAR=foo-value;;bar-value", "KEPT=$(FOO) $(NOBODY)"] {
        ensure!(said.lines().any(|found| found == line), "{line:?} is not in {said}");
    }
    Ok(())
}

// [sig-node] Variable Expansion should allow substituting values in a container's args [NodeConformance] [Conformance]
fn arguments(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-args")?;
    let env = json!([{ "name": "TEST_VAR", "value": "test-value" }]);
    let container = json!({ "command": ["sh", "-c"], "args": ["TEST_VAR=wrong; echo \"$(TEST_VAR)\""], "env": env });
    let said = space.says(&pod("args", container))?;
    ensure!(said == "test-value\n", "{said}");
    Ok(())
}

// [sig-node] Variable Expansion should allow substituting values in a container's command [NodeConformance] [Conformance]
fn command(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-command")?;
    let env = json!([{ "name": "TEST_VAR", "value": "test-value" }]);
    let container = json!({ "command": ["sh", "-c", "TEST_VAR=wrong; echo \"$(TEST_VAR)\""], "env": env });
    let said = space.says(&pod("command", container))?;
    ensure!(said == "test-value\n", "{said}");
    Ok(())
}

/// A pod whose first container has a volume's sub-path, and whose second has the whole volume.
fn with_sub_path(name: &str, variable: Value, expression: &str, scripts: [&str; 2]) -> Value {
    let mut variable = variable;
    variable["name"] = json!("TOLD");
    let mut pod = pod_of(
        name,
        json!([
            {
                "command": ["sh", "-c", scripts[0]],
                "env": [variable],
                "volumeMounts": [{ "name": "work", "mountPath": "/sub", "subPathExpr": expression }],
            },
            {
                "command": ["sh", "-c", scripts[1]],
                "volumeMounts": [{ "name": "work", "mountPath": "/whole" }],
            },
        ]),
    );
    pod["spec"]["volumes"] = json!([{ "name": "work", "emptyDir": {} }]);
    pod
}

fn of_annotation() -> Value {
    json!({ "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['mysubpath']" } } })
}

// [sig-node] Variable Expansion should allow substituting values in a volume subpath [Conformance]
fn sub_path(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-path")?;
    let name = json!({ "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } });
    let wait = "for i in $(seq 300); do [ -d /whole/paths/named ] && exit 0; sleep 0.1; done; ls -R /whole; exit 1";
    space.make("pods", &with_sub_path("named", name, "paths/$(TOLD)", ["test -d /sub", wait]))?;
    let pod = space.ended("named")?;
    ensure!(pod["status"]["phase"] == "Succeeded", "{}\n{}", pod["status"], space.log("named", "main-1")?);
    Ok(())
}

/// A pod with this sub-path waits with a configuration error; another container of it runs meanwhile.
fn never_starts(space: &Space<'_>, value: &str) -> Result<()> {
    space.make("pods", &with_sub_path("bad", json!({ "value": value }), "$(TOLD)", ["true", "sleep 1000"]))?;
    space.pod_until("bad", "waits with a configuration error", |pod| {
        first(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    // It stays so when it is tried again.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        let pod = space.read("pods/bad")?;
        ensure!(first(&pod)["state"]["waiting"].is_object() && first(&pod)["restartCount"] == 0, "{}", first(&pod));
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

// [sig-node] Variable Expansion should fail substituting values in a volume subpath with absolute path [Conformance]
fn absolute_sub_path(lab: &Lab) -> Result<()> {
    never_starts(&lab.quarter("expand-absolute")?, "/tmp")
}

// [sig-node] Variable Expansion should fail substituting values in a volume subpath with backticks [Conformance]
fn backticks_in_a_sub_path(lab: &Lab) -> Result<()> {
    // What is in backticks is not run, and what would be left of it is no path within the volume.
    never_starts(&lab.quarter("expand-backticks")?, "..`pwd`/../..")
}

// [sig-node] Variable Expansion should succeed in writing subpaths in container [Conformance]
fn writes_below_a_sub_path(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-write")?;
    let mut pod = with_sub_path("writer", of_annotation(), "$(TOLD)", ["sleep 1000", "sleep 1000"]);
    pod["metadata"]["annotations"] = json!({ "mysubpath": "mypath" });
    space.started(&pod)?;
    let exec = |container: &str, script: &str| lab.api()?.exec(&space.name, "writer", container, &["sh", "-c", script]);
    exec("main", "echo here > /sub/test.log")?;
    let seen = exec("main-1", "cat /whole/mypath/test.log")?;
    ensure!(seen == "here\n", "{seen:?}");
    // The end of the pod needs no expansion: this one would give no path within the volume.
    space.amend("pods/writer", &json!({ "metadata": { "annotations": { "mysubpath": "../../mynewpath" } } }))?;
    space.remove("pods/writer")?;
    space.gone("writer")
}

// [sig-node] Variable Expansion should verify that a failing subpath expansion can be modified during the lifecycle of a container [Slow] [Conformance]
fn failing_sub_path_is_mended(lab: &Lab) -> Result<()> {
    let space = lab.quarter("expand-mend")?;
    let mut pod = with_sub_path("mended", of_annotation(), "$(TOLD)", ["sleep 1000", "sleep 1000"]);
    pod["metadata"]["annotations"] = json!({ "mysubpath": "/absolute" });
    space.make("pods", &pod)?;
    space.pod_until("mended", "waits with a configuration error", |pod| {
        first(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    space.amend("pods/mended", &json!({ "metadata": { "annotations": { "mysubpath": "mypath" } } }))?;
    let pod = space.pod_until("mended", "runs", |pod| first(pod)["state"]["running"].is_object())?;
    ensure!(first(&pod)["restartCount"] == 0, "{}", first(&pod));
    let seen = lab.api()?.exec(&space.name, "mended", "main-1", &["ls", "/whole"])?;
    ensure!(seen == "mypath\n", "{seen:?}");
    Ok(())
}
