//! Upstream's example pods: those that pass pass, those that fail are refused. They are kept next to the repository, not in it.

use std::path::{Path, PathBuf};

use keelson_admission::pod_security::{Level, LevelVersion, Version, details, evaluate};
use serde_json::Value;

/// Next to the repository, or one folder up where the repository is one of several worktrees.
fn corpus() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["..", "../.."].map(|up| repository.join(up).join("shared/corpus/pod-security"));
    folders.into_iter().find(|folder| folder.is_dir())
}

fn pods(folder: &Path) -> Vec<(PathBuf, Value)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap();
        let documents = kube_common::yaml::parse_documents(&text).unwrap();
        assert_eq!(documents.len(), 1, "{}", file.display());
        let pod = documents[0].to_json();
        (file, pod)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn the_corpus_is_decided_as_upstream_does() {
    let Some(corpus) = corpus() else {
        eprintln!("SKIPPED: the_corpus_is_decided_as_upstream_does: shared/corpus/pod-security is not there");
        return;
    };
    let mut wrong = Vec::new();
    for (level, name, passing, failing) in
        [(Level::Baseline, "baseline", 15, 34), (Level::Restricted, "restricted", 23, 76)]
    {
        for (folder, fine, least) in [("pass", true, passing), ("fail", false, failing)] {
            let pods = pods(&corpus.join(name).join(folder));
            assert!(pods.len() >= least, "{name}/{folder}: {} files", pods.len());
            for (file, pod) in pods {
                let policy = LevelVersion { level, version: Version::Latest };
                let found = evaluate(policy, &pod["metadata"], &pod["spec"]);
                // The file is named after the check that it is about.
                let about = file
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .trim_end_matches(|c: char| c.is_ascii_digit())
                    .to_owned();
                let by_it = found.iter().any(|violation| violation.check.to_lowercase() == about);
                let replaced = level == Level::Restricted && about.ends_with("_baseline")
                    || matches!((level, about.as_str()), (Level::Restricted, "procmount" | "hostpathvolumes"));
                let right = if fine { found.is_empty() } else { by_it || (replaced && !found.is_empty()) };
                if !right {
                    wrong.push(format!("{}: {}", file.display(), details(&found)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
