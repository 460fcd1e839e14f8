//! Users, privileges and kernel parameters of containers.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::objects::{pod, server, shell};
use serde_json::{Value, json};

tests![
    run_as_user,
    unprivileged,
    writable_root,
    user_and_group_of_the_container,
    user_and_group_of_the_pod,
    no_escalation,
    sysctls,
    bad_sysctls,
];

fn secured(script: &str, context: Value) -> Value {
    let mut container = shell(script);
    container["securityContext"] = context;
    pod("secured", container)
}

// [sig-node] Security Context When creating a container with runAsUser should run the container with uid 65534 [LinuxOnly] [NodeConformance] [Conformance]
fn run_as_user(lab: &Lab) -> Result<()> {
    let space = lab.quarter("run-as-user")?;
    let said = space.says(&secured("id -u", json!({ "runAsUser": 65534 })))?;
    ensure!(said == "65534\n", "{said}");
    Ok(())
}

// [sig-node] Security Context When creating a pod with privileged should run the container as unprivileged when false [LinuxOnly] [NodeConformance] [Conformance]
fn unprivileged(lab: &Lab) -> Result<()> {
    let space = lab.quarter("unprivileged")?;
    let script = "ip link add dummy0 type dummy 2>&1 || true";
    let said = space.says(&secured(script, json!({ "privileged": false })))?;
    ensure!(said.contains("Operation not permitted"), "{said}");
    Ok(())
}

// [sig-node] Security Context When creating a pod with readOnlyRootFilesystem should run the container with writable rootfs when readOnlyRootFilesystem=false [NodeConformance] [Conformance]
fn writable_root(lab: &Lab) -> Result<()> {
    let space = lab.quarter("writable-root")?;
    let said = space.says(&secured("echo data > /file && cat /file", json!({ "readOnlyRootFilesystem": false })))?;
    ensure!(said == "data\n", "{said}");
    Ok(())
}

/// Who runs, and to whom belongs what it makes.
const WHO: &str = "id -u; id -g; touch /tmp/made; stat -c '%u %g' /tmp/made";
const WHO_SAYS: &str = "1001\n2002\n1001 2002\n";

// [sig-node] Security Context should support container.SecurityContext.RunAsUser And container.SecurityContext.RunAsGroup [LinuxOnly] [Conformance]
fn user_and_group_of_the_container(lab: &Lab) -> Result<()> {
    let space = lab.quarter("container-user")?;
    let mut pod = secured(WHO, json!({ "runAsUser": 1001, "runAsGroup": 2002 }));
    // What the container says goes before what the pod says.
    pod["spec"]["securityContext"] = json!({ "runAsUser": 1, "runAsGroup": 2 });
    let said = space.says(&pod)?;
    ensure!(said == WHO_SAYS, "{said}");
    Ok(())
}

// [sig-node] Security Context should support pod.Spec.SecurityContext.RunAsUser And pod.Spec.SecurityContext.RunAsGroup [LinuxOnly] [Conformance]
fn user_and_group_of_the_pod(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-user")?;
    let mut pod = secured(WHO, json!({}));
    pod["spec"]["securityContext"] = json!({ "runAsUser": 1001, "runAsGroup": 2002 });
    let said = space.says(&pod)?;
    ensure!(said == WHO_SAYS, "{said}");
    Ok(())
}

// [sig-node] Security Context when creating containers with AllowPrivilegeEscalation should not allow privilege escalation when false [LinuxOnly] [NodeConformance] [Conformance]
fn no_escalation(lab: &Lab) -> Result<()> {
    let space = lab.quarter("no-escalation")?;
    // A program with the set-user-ID bit of root, which says as whom it runs; busybox would give such a right back.
    let mount = json!([{ "name": "tools", "mountPath": "/tools" }]);
    for (allowed, expected) in [(false, "Effective uid: 1000\n"), (true, "Effective uid: 0\n")] {
        let name = format!("escalation-{allowed}");
        let mut make = server(&[]);
        make["name"] = json!("make");
        make["imagePullPolicy"] = json!("IfNotPresent");
        make["command"] = json!(["sh", "-c", "cp /usr/bin/test-server /tools/who && chmod 4755 /tools/who"]);
        make["volumeMounts"] = mount.clone();
        let mut main = json!({ "command": ["/tools/who", "--effective-uid"], "volumeMounts": mount });
        main["securityContext"] = json!({ "runAsUser": 1000, "allowPrivilegeEscalation": allowed });
        let mut pod = pod(&name, main);
        pod["spec"]["initContainers"] = json!([make]);
        pod["spec"]["volumes"] = json!([{ "name": "tools", "emptyDir": {} }]);
        let said = space.says(&pod)?;
        ensure!(said == expected, "with allowPrivilegeEscalation {allowed}: {said}");
    }
    Ok(())
}

// [sig-node] Sysctls [LinuxOnly] [NodeConformance] should support sysctls [Environment:NotInUserNS] [Conformance]
fn sysctls(lab: &Lab) -> Result<()> {
    let space = lab.quarter("sysctls")?;
    let mut pod = secured("cat /proc/sys/kernel/shm_rmid_forced", json!({}));
    pod["spec"]["securityContext"] = json!({ "sysctls": [{ "name": "kernel.shm_rmid_forced", "value": "1" }] });
    let said = space.says(&pod)?;
    ensure!(said == "1\n", "{said}");
    // It is not what a pod has anyway.
    let mut other = secured("cat /proc/sys/kernel/shm_rmid_forced", json!({}));
    other["metadata"]["name"] = json!("plain");
    let said = space.says(&other)?;
    ensure!(said == "0\n", "{said}");
    Ok(())
}

// [sig-node] Sysctls [LinuxOnly] [NodeConformance] should reject invalid sysctls [Conformance]
fn bad_sysctls(lab: &Lab) -> Result<()> {
    let space = lab.quarter("bad-sysctls")?;
    let mut pod = secured("true", json!({}));
    pod["spec"]["securityContext"] = json!({ "sysctls": [
        { "name": "kernel.shmmax", "value": "1000" },
        { "name": "foo-", "value": "bar" },
        { "name": "bar..", "value": "42" },
    ] });
    let said = lab.api()?.refused(&http::Method::POST, &space.url("pods"), Some(&pod), 422)?;
    let message = said["message"].as_str().unwrap_or_default();
    ensure!(message.contains("Invalid value: \"foo-\"") && message.contains("Invalid value: \"bar..\""), "{message}");
    ensure!(!message.contains("kernel.shmmax"), "{message}");
    lab.api()?.absent(&space.url("pods/secured"))
}
