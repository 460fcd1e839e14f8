//! What a job's pod looks like. Pure.
//!
//! Upstream counterpart: the creation part of `manageJob`, `addCompletionIndexEnvVariables`, `podGenerateNameWithIndex`.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use super::policy::judge;
use super::view::{INDEX, INDEX_FAILURES, INDEX_IGNORED, TRACKING, index_failures};
use crate::meta::name_of;
use crate::pod_control::generated_pod;

const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// Longest prefix to which the server still adds a suffix.
const PREFIX_MAX: usize = 58;

/// A new pod, of an index in an indexed job; `before` is the failed pod of that index that it replaces, where the number of
/// failures matters.
pub fn pod(job: &Job, spec: &JobSpec, index: Option<u32>, before: Option<&Pod>) -> Pod {
    let mut pod = generated_pod(job, &spec.template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == TRACKING) {
        finalizers.push(TRACKING.to_owned());
    }
    let Some(index) = index else { return pod };
    let text = index.to_string();
    pod.metadata.generate_name = Some(prefix(name_of(job), index));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), text.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), text);
    if spec.backoff_limit_per_index.is_some() {
        let (counted, ignored) = before.map_or((0, 0), |before| {
            let (counted, ignored) = index_failures(before);
            if judge(job, before).counts() { (counted + 1, ignored) } else { (counted, ignored + 1) }
        });
        annotations.insert(INDEX_FAILURES.to_owned(), counted.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED.to_owned(), ignored.to_string());
        }
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{}-{index}", name_of(job)));
    spec.init_containers.iter_mut().flatten().for_each(tell_index);
    spec.containers.iter_mut().for_each(tell_index);
    pod
}

fn prefix(name: &str, index: u32) -> String {
    let end = format!("-{index}-");
    let room = PREFIX_MAX - end.len();
    format!("{}{end}", &name[..name.len().min(room)])
}

/// The container's environment names the index, unless it has such a variable.
fn tell_index(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_ENV) {
        return;
    }
    let field_ref = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), api_version: None };
    env.push(EnvVar {
        name: INDEX_ENV.to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() }),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::decide::tests::{job, pod as failed};
    use crate::meta::{annotation, labels};
    use serde_json::json;

    #[test]
    fn an_indexed_pod_knows_its_index() {
        let job = job(|j| {
            j["metadata"]["name"] = json!("x".repeat(60));
            j["spec"]["backoffLimitPerIndex"] = json!(3);
            j["spec"]["template"]["spec"]["containers"] =
                json!([{"name": "a"}, {"name": "b", "env": [{"name": INDEX_ENV, "value": "mine"}]}]);
        });
        let spec = job.spec.as_ref().unwrap();
        let before = failed("p/4", "Failed", |p| p["metadata"]["annotations"][INDEX_FAILURES] = json!("1"));
        let pod = pod(&job, spec, Some(4), Some(&before));
        assert_eq!((annotation(&pod, INDEX), labels(&pod)[INDEX].as_str()), (Some("4"), "4"));
        assert_eq!((annotation(&pod, INDEX_FAILURES), annotation(&pod, INDEX_IGNORED)), (Some("2"), None));
        assert_eq!(pod.metadata.generate_name.as_deref().unwrap().len(), PREFIX_MAX);
        assert_eq!(pod.metadata.finalizers.as_deref(), Some(&[TRACKING.to_owned()][..]));
        let spec = pod.spec.unwrap();
        let paths: Vec<_> = spec
            .containers
            .iter()
            .map(|c| {
                let variable = &c.env.as_ref().unwrap()[0];
                variable.value_from.as_ref().and_then(|v| v.field_ref.as_ref()).map(|f| f.field_path.clone())
            })
            .collect();
        assert_eq!(paths, [Some(format!("metadata.labels['{INDEX}']")), None]);
        assert!(spec.hostname.unwrap().ends_with("x-4"));
    }

    #[test]
    fn a_plain_pod_is_only_tracked() {
        let job = job(|_| {});
        let pod = pod(&job, job.spec.as_ref().unwrap(), None, None);
        assert_eq!((pod.metadata.generate_name.as_deref(), pod.spec.unwrap().hostname), (Some("j-"), None));
    }
}
