//! A namespace's objects by the API alone, and the pods that tests are made of.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api::Patch;
use crate::lab::{Lab, Space};

/// How long a pod may take for what it does.
const PATIENCE: u64 = 90;

/// A pod of one container that runs once; `container` may name another image than busybox.
pub fn pod(name: &str, container: Value) -> Value {
    pod_of(name, json!([container]))
}

/// A pod that runs its containers once. Names and images are filled in.
pub fn pod_of(name: &str, mut containers: Value) -> Value {
    for (at, container) in containers.as_array_mut().into_iter().flatten().enumerate() {
        let other = if at == 0 { "main".to_owned() } else { format!("main-{at}") };
        container["name"] = container.get("name").cloned().unwrap_or_else(|| json!(other));
        container["image"] = container.get("image").cloned().unwrap_or_else(|| json!("busybox:1.28"));
        container["imagePullPolicy"] = json!("IfNotPresent");
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": containers,
        },
    })
}

/// A container that runs a shell script.
pub fn shell(script: &str) -> Value {
    json!({ "command": ["sh", "-c", script] })
}

/// A container that does nothing for long.
pub fn idle() -> Value {
    json!({ "command": ["sleep", "100000"] })
}

/// The test server's container.
pub fn server(arguments: &[&str]) -> Value {
    json!({ "image": "keelson.dev/test-server:latest", "args": arguments })
}

/// The status of a pod's first container.
pub fn first(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// Whether a condition of an object is true.
pub fn holds(object: &Value, condition: &str) -> bool {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.into_iter().any(|found| found["type"] == condition && found["status"] == "True")
}

impl Lab {
    /// A namespace for one test, without a kubectl; removed with the handle.
    pub fn quarter(&self, name: &str) -> Result<Space<'_>> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.api()?.create("/api/v1/namespaces", &namespace)?;
        let space = Space { lab: self, name: name.to_owned() };
        self.wait("the namespace has its service account", 30, || space.read("serviceaccounts/default").map(Some))?;
        Ok(space)
    }
}

fn url(namespace: &str, path: &str) -> String {
    let of_group = path.split('/').nth(1).is_some_and(|version| {
        version.strip_prefix('v').is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    });
    if of_group {
        let mut parts = path.splitn(3, '/');
        let (group, version, rest) = (parts.next(), parts.next(), parts.next());
        let [group, version, rest] = [group, version, rest].map(Option::unwrap_or_default);
        return format!("/apis/{group}/{version}/namespaces/{namespace}/{rest}");
    }
    format!("/api/v1/namespaces/{namespace}/{path}")
}

impl Space<'_> {
    /// The URL of `pods`, `pods/NAME` or, of another group, `apps/v1/deployments`.
    pub fn url(&self, path: &str) -> String {
        url(&self.name, path)
    }

    /// Reads an object or a list.
    pub fn read(&self, path: &str) -> Result<Value> {
        self.lab.api()?.get(&self.url(path))
    }

    /// Creates an object.
    pub fn make(&self, path: &str, object: &Value) -> Result<Value> {
        self.lab.api()?.create(&self.url(path), object)
    }

    /// Changes an object by a merge patch.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<Value> {
        self.lab.api()?.patch(&self.url(path), Patch::Merge, patch)
    }

    /// Changes an object by a strategic merge patch.
    pub fn amend(&self, path: &str, patch: &Value) -> Result<Value> {
        self.lab.api()?.patch(&self.url(path), Patch::Strategic, patch)
    }

    /// Replaces an object.
    pub fn put(&self, path: &str, object: &Value) -> Result<Value> {
        self.lab.api()?.replace(&self.url(path), object)
    }

    /// Deletes an object, or what a selector finds.
    pub fn remove(&self, path: &str) -> Result<Value> {
        self.lab.api()?.delete(&self.url(path))
    }

    /// Waits until a pod is as it is wanted.
    pub fn pod_until(&self, name: &str, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let path = format!("pods/{name}");
        let result = self.lab.wait(&format!("{name} {what}"), PATIENCE, || {
            last = self.read(&path)?;
            Ok(wanted(&last).then(|| last.clone()))
        });
        result.with_context(|| format!("at last its status was {}", last["status"]))
    }

    /// Creates a pod and waits until it is ready.
    pub fn started(&self, pod: &Value) -> Result<Value> {
        self.make("pods", pod)?;
        self.pod_until(name_of(pod), "is ready", |pod| holds(pod, "Ready"))
    }

    /// Waits until a pod has ended, well or badly.
    pub fn ended(&self, name: &str) -> Result<Value> {
        self.pod_until(name, "ends", |pod| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase))
    }

    /// The log of a pod's container (of its only one for an empty name).
    pub fn log(&self, pod: &str, container: &str) -> Result<String> {
        self.lab.api()?.text(&self.url(&format!("pods/{pod}/log?container={container}")))
    }

    /// Creates a pod of one container, which must succeed, and gives what it said.
    pub fn says(&self, pod: &Value) -> Result<String> {
        self.make("pods", pod)?;
        let name = name_of(pod);
        let ended = self.ended(name)?;
        let log = self.log(name, "")?;
        ensure!(ended["status"]["phase"] == "Succeeded", "{name} failed: {}\n{log}", ended["status"]);
        Ok(log)
    }

    /// Waits until the pod is gone.
    pub fn gone(&self, name: &str) -> Result<()> {
        let url = self.url(&format!("pods/{name}"));
        self.lab.until(&format!("{name} is gone"), PATIENCE, || self.lab.api()?.absent(&url).map(|()| true))
    }

    /// Reasons and messages of the events about an object, one a line.
    pub fn told(&self, object: &str) -> Result<String> {
        let list = self.read(&format!("events?fieldSelector=involvedObject.name={object}"))?;
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let line = |event: &Value| {
            format!("{}: {}", event["reason"].as_str().unwrap_or(""), event["message"].as_str().unwrap_or(""))
        };
        Ok(events.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

/// An object's name.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_core_and_of_groups() {
        assert_eq!(url("n", "pods/p/log?container=c"), "/api/v1/namespaces/n/pods/p/log?container=c");
        assert_eq!(url("n", "pods/very"), "/api/v1/namespaces/n/pods/very");
        assert_eq!(url("n", "apps/v1/deployments/d"), "/apis/apps/v1/namespaces/n/deployments/d");
    }
}
