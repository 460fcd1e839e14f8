//! `agent adopt --dry-run`: what would happen to each pod of this node if the agent took it over now, and why. Nothing is changed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::judge::{Fate, Judgement, Node, judge_all};
use super::node::findings;
use super::statics::Predecessors;
use crate::agent;
use crate::clock;
use crate::config::Config;
use crate::flight::command::{Output, print, print_json};
use crate::metrics::Metrics;
use crate::pleg::Pleg;
use crate::runtime::cri::CriRuntime;
use crate::runtime::{Filter, Runtime};
use crate::source::{self, PodSet, api, file, url};

/// Longest time that the API server may take.
const API_LIMIT: Duration = Duration::from_secs(10);

/// `agent adopt`.
#[derive(Clone, Debug, Args)]
pub struct Adopt {
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
struct Answer {
    node: String,
    pods: Vec<Judgement>,
    findings: Vec<String>,
    unreadable: Vec<String>,
}

/// What the sources want, and those that could not be read.
#[derive(Default)]
struct Wanted {
    statics: PodSet,
    api: PodSet,
    /// Who could not be read, and why.
    silent: Vec<(String, String)>,
    /// Manifests that cannot be used, and why.
    wrong: Vec<(String, String)>,
}

impl Adopt {
    /// Carries it out.
    ///
    /// # Errors
    /// What a person has to do first.
    pub async fn run(&self, config: &Config) -> Result<(), String> {
        if !self.dry_run {
            return Err("there is nothing to be done but to start the agent: it adopts what runs. See what that would do with: agent adopt --dry-run".into());
        }
        kube_common::tls::install_ring();
        let runtime: Arc<dyn Runtime> =
            Arc::new(CriRuntime::new(&config.kubelet.container_runtime_endpoint, Metrics::default()));
        let pleg = Pleg::new(runtime.clone(), Metrics::default());
        pleg.relist().await.map_err(|e| e.to_string())?;
        let sandboxes = runtime.list_sandboxes(Filter::default()).await.map_err(|e| e.to_string())?;
        let records = pleg.all();
        let unread: BTreeSet<&str> = sandboxes
            .iter()
            .map(|sandbox| sandbox.pod.uid.as_str())
            .filter(|uid| !uid.is_empty() && records.iter().all(|record| record.uid != *uid))
            .collect();
        if !unread.is_empty() {
            let list: Vec<&str> = unread.into_iter().collect();
            return Err(format!("the runtime does not tell of these pods (UIDs): {}; ask again", list.join(", ")));
        }
        let predecessors = Predecessors::of(&sandboxes);
        let wanted = wanted(config, &predecessors).await;
        let names = |list: &[(String, String)]| -> Vec<String> { list.iter().map(|(who, _)| who.clone()).collect() };
        let (silent, wrong) = (names(&wanted.silent), names(&wanted.wrong));
        let pods = judge_all(Node {
            wanted: &source::merge(&wanted.statics, &wanted.api),
            records: &records,
            predecessors: &predecessors,
            silent: &silent,
            wrong: &wrong,
            policy: agent::policy(config),
            now: clock::now(),
        });
        let answer = Answer {
            node: config.node_name(),
            pods,
            findings: findings(config, &records, Path::new("/proc")),
            unreadable: wanted
                .silent
                .into_iter()
                .map(|(who, why)| format!("{who} cannot be read: {why}"))
                .chain(wanted.wrong.into_iter().map(|(_, why)| why))
                .collect(),
        };
        match self.output {
            Output::Text => print(&text(&answer)),
            Output::Json => print_json(&answer)?,
        }
        Ok(())
    }
}

async fn wanted(config: &Config, predecessors: &Predecessors) -> Wanted {
    let mut out = Wanted::default();
    let name = config.node_name();
    if let Some(path) = &config.kubelet.static_pod_path {
        let mut folder = file::Folder::new(path, &name).inheriting(predecessors.clone());
        match folder.scan() {
            Some(pods) => out.statics.extend(pods),
            None => out.silent.push((path.display().to_string(), "it cannot be listed".into())),
        }
        out.wrong.extend(folder.mistakes().map(|(path, why)| (path.display().to_string(), why.to_owned())));
    }
    if !config.kubelet.static_pod_url.is_empty() {
        let address = &config.kubelet.static_pod_url;
        match url::Remote::new(address, &config.kubelet.static_pod_url_header, &name, None).once().await {
            Ok(pods) => out.statics.extend(pods),
            Err(why) => out.silent.push((address.clone(), why)),
        }
    }
    match api_pods(config, &name).await {
        Ok(pods) => out.api = pods,
        Err(why) => out.silent.push(("the API server".into(), why)),
    }
    out
}

async fn api_pods(config: &Config, name: &str) -> Result<PodSet, String> {
    let Some(client) = agent::client_config(config).await.map_err(|e| e.to_string())? else {
        return Ok(PodSet::new());
    };
    let client = kube_common::client::client(client).map_err(|e| e.to_string())?;
    match tokio::time::timeout(API_LIMIT, api::list(client, name)).await {
        Ok(pods) => pods.map_err(|e| api::brief(&e)),
        Err(_) => Err(format!("no answer within {API_LIMIT:?}")),
    }
}

fn text(answer: &Answer) -> String {
    let width = answer.pods.iter().map(|p| p.pod.len()).max().unwrap_or(0).max(3);
    let mut out = format!("{:width$}  {:10}  WHY\n", "POD", "WHAT");
    for pod in &answer.pods {
        let _ = writeln!(out, "{:width$}  {:10}  {}", pod.pod, pod.fate.word(), pod.reasons.join("; "));
    }
    let count = |fate| answer.pods.iter().filter(|p| p.fate == fate).count();
    let fates =
        [Fate::Kept, Fate::Restarts, Fate::Ends, Fate::Starts, Fate::CleanedUp, Fate::Finished, Fate::NotJudged];
    let counts: Vec<String> = fates
        .into_iter()
        .filter(|fate| count(*fate) > 0)
        .map(|fate| format!("{} {}", count(fate), fate.word()))
        .collect();
    let all = answer.pods.len();
    let _ =
        writeln!(out, "\n{all} pods on node {}{}{}", answer.node, if all == 0 { "" } else { ": " }, counts.join(", "));
    for line in answer.unreadable.iter().chain(&answer.findings) {
        let _ = writeln!(out, "! {line}");
    }
    out
}
