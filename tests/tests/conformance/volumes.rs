//! Volumes of ConfigMaps, Secrets and the downward API, each alone and as a part of a projected volume, and emptyDirs.
//!
//! The entries of each of these kinds ask for the same, so the tests are written once and run with every kind.

use anyhow::{Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{pod, pod_of, shell};
use serde_json::{Value, json};

tests![
    config_map_updates,
    secret_updates,
    downward_updates,
    config_map_files,
    secret_files,
    downward_files,
    combined,
    same_name_elsewhere,
    immutable,
    shared_empty_dir,
    empty_dirs_as_root,
    empty_dirs_as_another,
];

/// What files come from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    ConfigMap,
    Secret,
}

impl Source {
    fn plural(self) -> &'static str {
        if self == Self::ConfigMap { "configmaps" } else { "secrets" }
    }

    /// An object with these texts.
    fn object(self, name: &str, data: Value) -> Value {
        let field = if self == Self::ConfigMap { "data" } else { "stringData" };
        json!({ "metadata": { "name": name }, field: data })
    }

    /// A volume of an object, alone or projected; `more` has `items`, `defaultMode`, `optional`.
    fn volume(self, volume: &str, object: &str, more: &Value, projected: bool) -> Value {
        let (kind, name) = match (self, projected) {
            (Self::ConfigMap, _) => ("configMap", "name"),
            (Self::Secret, false) => ("secret", "secretName"),
            (Self::Secret, true) => ("secret", "name"),
        };
        let mut source = more.clone();
        source[name] = json!(object);
        if !projected {
            return json!({ "name": volume, kind: source });
        }
        // The mode is the whole volume's there.
        let mode = source.as_object_mut().and_then(|fields| fields.remove("defaultMode"));
        let mut whole = json!({ "sources": [{ kind: source }] });
        if let Some(mode) = mode {
            whole["defaultMode"] = mode;
        }
        json!({ "name": volume, "projected": whole })
    }
}

/// A pod of one container with volumes, each mounted at `/NAME`.
fn mounted(name: &str, script: &str, volumes: &[Value]) -> Value {
    let mut container = shell(script);
    let mounts = volumes.iter().map(|v| json!({ "name": v["name"], "mountPath": format!("/{}", text(&v["name"])) }));
    container["volumeMounts"] = mounts.collect();
    let mut pod = pod(name, container);
    pod["spec"]["volumes"] = json!(volumes);
    pod
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Files as they are, with modes and owners of what the links lead to.
const LOOK: &str = "id -u; for file in /*/data-* /*/path/to/*; do [ -e $file ] && \
    echo \"$file $(stat -L -c '%a %g' $file) $(cat $file)\"; done; true";

fn has(said: &str, lines: &[&str]) -> Result<()> {
    for line in lines {
        ensure!(said.lines().any(|found| found == *line), "{line:?} is not in:\n{said}");
    }
    Ok(())
}

fn files(lab: &Lab, source: Source) -> Result<()> {
    let space = lab.quarter(&format!("files-{}", source.plural()))?;
    space.make(source.plural(), &source.object("files", json!({ "data-1": "value-1", "data-2": "value-2" })))?;
    let items = json!([{ "key": "data-2", "path": "path/to/data-2" }]);
    let with_mode = json!([{ "key": "data-2", "path": "path/to/data-2", "mode": 0o400 }]);
    let volumes: Vec<Value> = [
        ("plain", json!({})),
        ("again", json!({})),
        ("locked", json!({ "defaultMode": 0o400 })),
        ("mapped", json!({ "items": items })),
        ("chosen", json!({ "items": with_mode })),
    ]
    .iter()
    .flat_map(|(name, more)| {
        [false, true].map(|projected| {
            let prefix = if projected { "p-" } else { "" };
            source.volume(&format!("{prefix}{name}"), "files", more, projected)
        })
    })
    .collect();
    let said = space.says(&mounted("root", LOOK, &volumes))?;
    for prefix in ["", "p-"] {
        let line = |rest: &str| format!("/{prefix}{rest}");
        let lines = [
            line("plain/data-1 644 0 value-1"),
            line("plain/data-2 644 0 value-2"),
            line("again/data-1 644 0 value-1"),
            line("locked/data-1 400 0 value-1"),
            line("mapped/path/to/data-2 644 0 value-2"),
            line("chosen/path/to/data-2 400 0 value-2"),
        ];
        has(&said, &lines.iter().map(String::as_str).collect::<Vec<_>>())?;
        ensure!(!said.contains(&line("mapped/data-")), "a mapping brings other keys too: {said}");
    }
    // As another user; with a group of the volume, whose members may read.
    let volumes: Vec<Value> = [false, true]
        .iter()
        .flat_map(|projected| {
            let prefix = if *projected { "p-" } else { "" };
            [
                source.volume(&format!("{prefix}plain"), "files", &json!({}), *projected),
                source.volume(&format!("{prefix}locked"), "files", &json!({ "defaultMode": 0o440 }), *projected),
                source.volume(&format!("{prefix}mapped"), "files", &json!({ "items": items }), *projected),
            ]
        })
        .collect();
    let mut other = mounted("other", LOOK, &volumes);
    other["spec"]["securityContext"] = json!({ "runAsUser": 1000, "fsGroup": 1001 });
    let said = space.says(&other)?;
    has(&said, &["1000"])?;
    for prefix in ["", "p-"] {
        let line = |rest: &str| format!("/{prefix}{rest}");
        let lines = [
            line("plain/data-1 644 1001 value-1"),
            line("locked/data-1 440 1001 value-1"),
            line("mapped/path/to/data-2 644 1001 value-2"),
        ];
        has(&said, &lines.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

// [sig-storage] ConfigMap should be consumable from pods in volume [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable from pods in volume as non-root [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable from pods in volume with defaultMode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable from pods in volume with mappings [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable from pods in volume with mappings and Item mode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable from pods in volume with mappings as non-root [NodeConformance] [Conformance]
// [sig-storage] ConfigMap should be consumable in multiple volumes in the same pod [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume as non-root [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume with defaultMode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume with mappings [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume with mappings and Item mode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable from pods in volume with mappings as non-root [NodeConformance] [Conformance]
// [sig-storage] Projected configMap should be consumable in multiple volumes in the same pod [NodeConformance] [Conformance]
fn config_map_files(lab: &Lab) -> Result<()> {
    files(lab, Source::ConfigMap)
}

// [sig-storage] Secrets should be consumable from pods in volume [NodeConformance] [Conformance]
// [sig-storage] Secrets should be consumable from pods in volume as non-root with defaultMode and fsGroup set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Secrets should be consumable from pods in volume with defaultMode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Secrets should be consumable from pods in volume with mappings [NodeConformance] [Conformance]
// [sig-storage] Secrets should be consumable from pods in volume with mappings and Item Mode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Secrets should be consumable in multiple volumes in a pod [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable from pods in volume [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable from pods in volume as non-root with defaultMode and fsGroup set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable from pods in volume with defaultMode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable from pods in volume with mappings [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable from pods in volume with mappings and Item Mode set [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected secret should be consumable in multiple volumes in a pod [NodeConformance] [Conformance]
fn secret_files(lab: &Lab) -> Result<()> {
    files(lab, Source::Secret)
}

/// Says what is in the pod's volumes until it is told to end, whenever it changes.
const FOLLOW: &str =
    "while true; do for file in /*/data-*; do [ -e $file ] && echo \"$file $(cat $file)\"; done; echo; sleep 0.2; done";

/// The last complete report of a pod that follows its volumes.
fn shown(space: &Space<'_>, pod: &str) -> Result<String> {
    let log = space.lab.api()?.text(&space.url(&format!("pods/{pod}/log?tailLines=60")))?;
    // The very last may be half of one.
    let mut reports = log.rsplit("\n\n").filter(|report| !report.trim().is_empty()).skip(1);
    Ok(reports.next().unwrap_or_default().trim().to_owned())
}

fn shows(space: &Space<'_>, pod: &str, wanted: &[&str], unwanted: &[&str]) -> Result<()> {
    let mut last = String::new();
    let result = space.lab.until(&format!("{pod} shows {wanted:?}"), 90, || {
        last = shown(space, pod)?;
        let has = |line: &&str| last.lines().any(|found| found == *line);
        Ok(wanted.iter().all(has) && !unwanted.iter().any(has))
    });
    result.map_err(|error| anyhow::anyhow!("{error:#}; at last it showed:\n{last}"))
}

fn updates(lab: &Lab, source: Source) -> Result<()> {
    let space = lab.quarter(&format!("updates-{}", source.plural()))?;
    let all = source.plural();
    for name in ["changed", "deleted"] {
        space.make(all, &source.object(name, json!({ "data-1": "value-1" })))?;
    }
    let optional = json!({ "optional": true });
    let volumes: Vec<Value> = ["changed", "deleted", "created"]
        .iter()
        .flat_map(|name| {
            [false, true].map(|projected| {
                let prefix = if projected { "p-" } else { "" };
                source.volume(&format!("{prefix}{name}"), name, &optional, projected)
            })
        })
        .collect();
    space.started(&mounted("follows", FOLLOW, &volumes))?;
    let before = [
        "/changed/data-1 value-1",
        "/p-changed/data-1 value-1",
        "/deleted/data-1 value-1",
        "/p-deleted/data-1 value-1",
    ];
    shows(&space, "follows", &before, &[])?;
    let data = if source == Source::ConfigMap { "data" } else { "stringData" };
    space.merge(&format!("{all}/changed"), &json!({ data: { "data-1": "value-2", "data-3": "value-3" } }))?;
    space.remove(&format!("{all}/deleted"))?;
    space.make(all, &source.object("created", json!({ "data-1": "value-1" })))?;
    let after = [
        "/changed/data-1 value-2",
        "/changed/data-3 value-3",
        "/p-changed/data-1 value-2",
        "/p-changed/data-3 value-3",
        "/created/data-1 value-1",
        "/p-created/data-1 value-1",
    ];
    shows(&space, "follows", &after, &["/deleted/data-1 value-1", "/p-deleted/data-1 value-1"])
}

// [sig-storage] ConfigMap updates should be reflected in volume [NodeConformance] [Conformance]
// [sig-storage] ConfigMap optional updates should be reflected in volume [NodeConformance] [Conformance]
// [sig-storage] Projected configMap updates should be reflected in volume [NodeConformance] [Conformance]
// [sig-storage] Projected configMap optional updates should be reflected in volume [NodeConformance] [Conformance]
fn config_map_updates(lab: &Lab) -> Result<()> {
    updates(lab, Source::ConfigMap)
}

// [sig-storage] Secrets optional updates should be reflected in volume [NodeConformance] [Conformance]
// [sig-storage] Projected secret optional updates should be reflected in volume [NodeConformance] [Conformance]
fn secret_updates(lab: &Lab) -> Result<()> {
    updates(lab, Source::Secret)
}

/// A downward API volume, alone or projected.
fn downward(volume: &str, items: Value, mode: Option<u32>, projected: bool) -> Value {
    let inner = json!({ "items": items });
    let mut source = if projected { json!({ "sources": [{ "downwardAPI": inner }] }) } else { inner };
    if let Some(mode) = mode {
        source["defaultMode"] = json!(mode);
    }
    json!({ "name": volume, if projected { "projected" } else { "downwardAPI" }: source })
}

fn field(path: &str, field: &str) -> Value {
    json!({ "path": path, "fieldRef": { "fieldPath": field } })
}

// [sig-storage] Downward API volume should provide container's cpu limit [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide container's cpu request [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide container's memory limit [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide container's memory request [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide node allocatable (cpu) as default cpu limit if the limit is not set [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide node allocatable (memory) as default memory limit if the limit is not set [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should provide podname only [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should set DefaultMode on files [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should set mode on item file [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide container's cpu limit [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide container's cpu request [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide container's memory limit [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide container's memory request [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide node allocatable (cpu) as default cpu limit if the limit is not set [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide node allocatable (memory) as default memory limit if the limit is not set [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should provide podname only [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should set DefaultMode on files [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should set mode on item file [LinuxOnly] [NodeConformance] [Conformance]
fn downward_files(lab: &Lab) -> Result<()> {
    let space = lab.quarter("files-downward")?;
    let resource = |path: &str, container: &str, resource: &str| json!({ "path": path, "resourceFieldRef": { "containerName": container, "resource": resource } });
    let items = json!([
        field("data-name", "metadata.name"),
        resource("data-cpu-limit", "main", "limits.cpu"),
        resource("data-cpu-request", "main", "requests.cpu"),
        resource("data-memory-limit", "main", "limits.memory"),
        resource("data-memory-request", "main", "requests.memory"),
        resource("data-node-cpu", "free", "limits.cpu"),
        resource("data-node-memory", "free", "limits.memory"),
    ]);
    let mut chosen = field("data-name", "metadata.name");
    chosen["mode"] = json!(0o400);
    let volumes: Vec<Value> = [false, true]
        .iter()
        .flat_map(|projected| {
            let prefix = if *projected { "p-" } else { "" };
            [
                downward(&format!("{prefix}all"), items.clone(), None, *projected),
                downward(
                    &format!("{prefix}locked"),
                    json!([field("data-name", "metadata.name")]),
                    Some(0o400),
                    *projected,
                ),
                downward(&format!("{prefix}chosen"), json!([chosen.clone()]), None, *projected),
            ]
        })
        .collect();
    let mut pod = mounted("told", LOOK, &volumes);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "250m", "memory": "32Mi" }, "limits": { "cpu": "1250m", "memory": "64Mi" } });
    let free = pod_of("none", json!([{ "name": "free", "command": ["true"] }]))["spec"]["containers"][0].clone();
    if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
        containers.push(free);
    }
    space.make("pods", &pod)?;
    space.ended("told")?;
    let said = space.log("told", "main")?;
    let node = lab.api()?.get("/api/v1/nodes/node-1")?;
    let allocatable = |name: &str| -> Result<i64> {
        Ok(kube_common::quantity::Quantity::parse(text(&node["status"]["allocatable"][name]))?.value())
    };
    let (cpu, memory) = (allocatable("cpu")?, allocatable("memory")?);
    for prefix in ["", "p-"] {
        let lines = [
            "all/data-name 644 0 told".to_owned(),
            "all/data-cpu-limit 644 0 2".to_owned(),
            "all/data-cpu-request 644 0 1".to_owned(),
            "all/data-memory-limit 644 0 67108864".to_owned(),
            "all/data-memory-request 644 0 33554432".to_owned(),
            format!("all/data-node-cpu 644 0 {cpu}"),
            format!("all/data-node-memory 644 0 {memory}"),
            "locked/data-name 400 0 told".to_owned(),
            "chosen/data-name 400 0 told".to_owned(),
        ]
        .map(|line| format!("/{prefix}{line}"));
        has(&said, &lines.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

// [sig-storage] Downward API volume should update annotations on modification [NodeConformance] [Conformance]
// [sig-storage] Downward API volume should update labels on modification [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should update annotations on modification [NodeConformance] [Conformance]
// [sig-storage] Projected downwardAPI should update labels on modification [NodeConformance] [Conformance]
fn downward_updates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("updates-downward")?;
    let items = json!([field("data-labels", "metadata.labels"), field("data-annotations", "metadata.annotations")]);
    let volumes = [downward("own", items.clone(), None, false), downward("p-own", items, None, true)];
    let mut pod = mounted("follows", FOLLOW, &volumes);
    pod["metadata"]["labels"] = json!({ "key": "first" });
    pod["metadata"]["annotations"] = json!({ "builder": "bar" });
    space.started(&pod)?;
    let lines = |label: &str, builder: &str| {
        ["own", "p-own"]
            .iter()
            .flat_map(|v| {
                [format!("/{v}/data-labels key=\"{label}\""), format!("/{v}/data-annotations builder=\"{builder}\"")]
            })
            .collect::<Vec<_>>()
    };
    let wanted = |space: &Space<'_>, lines: &[String]| {
        shows(space, "follows", &lines.iter().map(String::as_str).collect::<Vec<_>>(), &[])
    };
    wanted(&space, &lines("first", "bar"))?;
    let change = json!({ "metadata": { "labels": { "key": "second" }, "annotations": { "builder": "foo" } } });
    space.merge("pods/follows", &change)?;
    wanted(&space, &lines("second", "foo"))
}

// [sig-storage] Projected combined should project all components that make up the projection API [Projection] [NodeConformance] [Conformance]
fn combined(lab: &Lab) -> Result<()> {
    let space = lab.quarter("files-combined")?;
    for source in [Source::ConfigMap, Source::Secret] {
        space.make(source.plural(), &source.object("all", json!({ "data": source.plural() })))?;
    }
    let sources = json!([
        { "secret": { "name": "all", "items": [{ "key": "data", "path": "data-secret" }] } },
        { "configMap": { "name": "all", "items": [{ "key": "data", "path": "data-map" }] } },
        { "downwardAPI": { "items": [field("data-name", "metadata.name")] } },
    ]);
    let volume = json!({ "name": "all", "projected": { "sources": sources } });
    let said = space.says(&mounted("told", LOOK, &[volume]))?;
    has(&said, &["/all/data-secret 644 0 secrets", "/all/data-map 644 0 configmaps", "/all/data-name 644 0 told"])
}

// [sig-storage] Secrets should be able to mount in a volume regardless of a different secret existing with same name in different namespace [NodeConformance] [Conformance]
fn same_name_elsewhere(lab: &Lab) -> Result<()> {
    let (space, other) = (lab.quarter("secret-here")?, lab.quarter("secret-there")?);
    other.make("secrets", &Source::Secret.object("same", json!({ "data-1": "theirs" })))?;
    space.make("secrets", &Source::Secret.object("same", json!({ "data-1": "ours" })))?;
    let said = space.says(&mounted("told", LOOK, &[Source::Secret.volume("own", "same", &json!({}), false)]))?;
    has(&said, &["/own/data-1 644 0 ours"])
}

// [sig-storage] ConfigMap should be immutable if `immutable` field is set [Conformance]
// [sig-storage] Secrets should be immutable if `immutable` field is set [Conformance]
fn immutable(lab: &Lab) -> Result<()> {
    let space = lab.quarter("immutable")?;
    for source in [Source::ConfigMap, Source::Secret] {
        let all = source.plural();
        let one = format!("{all}/fixed");
        let data = if source == Source::ConfigMap { "data" } else { "stringData" };
        space.make(all, &source.object("fixed", json!({ "data-1": "value-1" })))?;
        space.merge(&one, &json!({ data: { "data-1": "value-2" } }))?;
        space.merge(&one, &json!({ "immutable": true }))?;
        let mut object = space.read(&one)?;
        let refused = |object: &Value| {
            let said = lab.api()?.refused(&http::Method::PUT, &space.url(&one), Some(object), 422)?;
            ensure!(text(&said["message"]).contains("field is immutable when `immutable` is set"), "{said}");
            Ok(())
        };
        object[data] = json!({ "data-1": "value-3" });
        refused(&object)?;
        let mut object = space.read(&one)?;
        object["immutable"] = json!(false);
        refused(&object)?;
        // The rest may change, and it can be deleted.
        let labelled = space.merge(&one, &json!({ "metadata": { "labels": { "more": "yes" } } }))?;
        ensure!(labelled["metadata"]["labels"]["more"] == "yes", "{labelled}");
        space.remove(&one)?;
        lab.api()?.absent(&space.url(&one))?;
    }
    Ok(())
}

// [sig-storage] EmptyDir volumes pod should support shared volumes between containers [Conformance]
fn shared_empty_dir(lab: &Lab) -> Result<()> {
    let space = lab.quarter("shared-folder")?;
    let mount = json!([{ "name": "shared", "mountPath": "/shared" }]);
    let mut writer = shell("echo 'Hello from the busy-box sub-container' > /shared/data; sleep 100000");
    writer["volumeMounts"] = mount.clone();
    let mut reader = shell("until cat /shared/data 2>/dev/null; do sleep 0.1; done; sleep 100000");
    reader["volumeMounts"] = mount;
    let mut pod = pod_of("pair", json!([reader, writer]));
    pod["spec"]["volumes"] = json!([{ "name": "shared", "emptyDir": {} }]);
    space.started(&pod)?;
    lab.until("the reader has it", 30, || Ok(space.log("pair", "main")? == "Hello from the busy-box sub-container\n"))
}

/// Folders of both media: their mode, and files of three modes made by `user`.
fn empty_dirs(lab: &Lab, name: &str, user: u32) -> Result<()> {
    let space = lab.quarter(name)?;
    let volumes =
        [json!({ "name": "default", "emptyDir": {} }), json!({ "name": "memory", "emptyDir": { "medium": "Memory" } })];
    let script = "for at in /default /memory; do echo \"$at $(stat -c %a $at) $(stat -f -c %T $at)\"; \
        for mode in 644 666 777; do echo words > $at/f; chmod $mode $at/f; \
        echo \"$at $mode $(stat -c '%A %u' $at/f) $(cat $at/f)\"; rm $at/f; done; done";
    let mut pod = mounted("maker", script, &volumes);
    pod["spec"]["securityContext"] = json!({ "runAsUser": user });
    let said = space.says(&pod)?;
    for at in ["/default", "/memory"] {
        let lines = [
            format!("{at} 644 -rw-r--r-- {user} words"),
            format!("{at} 666 -rw-rw-rw- {user} words"),
            format!("{at} 777 -rwxrwxrwx {user} words"),
        ];
        has(&said, &lines.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    // A tmpfs comes with the sticky bit, and upstream leaves it so.
    ensure!(said.contains("/default 777 ") && said.contains("/memory 1777 tmpfs"), "{said}");
    ensure!(!said.contains("/default 777 tmpfs"), "{said}");
    Ok(())
}

// [sig-storage] EmptyDir volumes should support (root,0644,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (root,0644,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (root,0666,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (root,0666,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (root,0777,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (root,0777,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes volume on default medium should have the correct mode [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes volume on tmpfs should have the correct mode [LinuxOnly] [NodeConformance] [Conformance]
fn empty_dirs_as_root(lab: &Lab) -> Result<()> {
    empty_dirs(lab, "folders-root", 0)
}

// [sig-storage] EmptyDir volumes should support (non-root,0644,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (non-root,0644,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (non-root,0666,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (non-root,0666,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (non-root,0777,default) [LinuxOnly] [NodeConformance] [Conformance]
// [sig-storage] EmptyDir volumes should support (non-root,0777,tmpfs) [LinuxOnly] [NodeConformance] [Conformance]
fn empty_dirs_as_another(lab: &Lab) -> Result<()> {
    empty_dirs(lab, "folders-other", 1001)
}
