//! Command and arguments: the image's and the pod's.
//!
//! nginx's image has both: an entrypoint that becomes its arguments, and the server as the default arguments.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::objects::pod;
use serde_json::{Value, json};

tests![defaults, arguments, command, both];

fn nginx(more: Value) -> Value {
    let mut container = json!({ "image": "nginx:1.25" });
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    container
}

// [sig-node] Containers should use the image defaults if command and args are blank [NodeConformance] [Conformance]
fn defaults(lab: &Lab) -> Result<()> {
    let space = lab.quarter("image-defaults")?;
    space.started(&pod("plain", nginx(json!({}))))?;
    // The entrypoint has become the default arguments: the server, which then shows them as its title.
    let mut said = String::new();
    lab.until("the server runs", 30, || {
        said = lab.api()?.exec(&space.name, "plain", "main", &["cat", "/proc/1/cmdline"])?;
        Ok(said.contains("nginx -g daemon off;") || said.contains("nginx\0-g\0daemon off;"))
    })?;
    let page = lab.wait("it serves", 30, || lab.api()?.text(&space.url("pods/plain:80/proxy/")).map(Some))?;
    ensure!(page.contains("nginx"), "{page}");
    Ok(())
}

// [sig-node] Containers should be able to override the image's default arguments (container cmd) [NodeConformance] [Conformance]
fn arguments(lab: &Lab) -> Result<()> {
    let space = lab.quarter("image-args")?;
    // The entrypoint's `exec` fails with the script's name in front: so it ran, and with these arguments.
    let container = nginx(json!({ "args": ["/no/such/program", "override"] }));
    space.make("pods", &pod("args", container))?;
    space.ended("args")?;
    let said = space.log("args", "")?;
    ensure!(said.contains("/docker-entrypoint.sh") && said.contains("/no/such/program"), "{said}");
    let said = space.says(&pod("echo", nginx(json!({ "args": ["echo", "override", "arguments"] }))))?;
    ensure!(said == "override arguments\n", "{said}");
    Ok(())
}

// [sig-node] Containers should be able to override the image's default command (container entrypoint) [NodeConformance] [Conformance]
fn command(lab: &Lab) -> Result<()> {
    let space = lab.quarter("image-command")?;
    // The image's arguments do not go with another command.
    let said = space.says(&pod(
        "command",
        nginx(json!({ "command": ["sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; echo; echo \"$#:$*\""] })),
    ))?;
    ensure!(said.starts_with("sh -c ") && said.ends_with("\n0:\n"), "{said}");
    Ok(())
}

// [sig-node] Containers should be able to override the image's default command and arguments [NodeConformance] [Conformance]
fn both(lab: &Lab) -> Result<()> {
    let space = lab.quarter("image-both")?;
    let said =
        space.says(&pod("both", nginx(json!({ "command": ["/bin/echo", "-n"], "args": ["override", "all"] }))))?;
    ensure!(said == "override all", "{said}");
    Ok(())
}
