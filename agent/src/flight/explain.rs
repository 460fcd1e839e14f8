//! Lines of the flight recorder, folded into what a person asks: what does the agent want, what does it see, what does it wait
//! for and since when, what went wrong, and where did the time of the start go. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::line::{Line, Step, What};

/// Errors shown, the newest.
const ERRORS: usize = 5;

/// Something that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What for.
    pub on: String,
    /// Since when, nanoseconds since the epoch.
    pub since_ns: i64,
    /// For how long, seconds.
    pub seconds: u64,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// When, nanoseconds since the epoch.
    pub at_ns: i64,
    /// What.
    pub text: String,
    /// How often.
    pub count: u32,
}

/// A step of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    /// What it was.
    pub step: String,
    /// When it began, nanoseconds since the agent first saw the pod.
    pub offset_ns: i64,
    /// How long it took, nanoseconds; none for what takes no time or has not ended.
    pub took_ns: Option<u64>,
    /// Details.
    pub text: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Namespace and name.
    pub pod: String,
    /// UID.
    pub uid: String,
    /// Where it came from: `api`, `manifest`.
    pub source: String,
    /// The time the answer is for, nanoseconds since the epoch.
    pub at_ns: i64,
    /// Whether everything of it was gone by then.
    pub gone: bool,
    /// What the agent wants.
    pub wants: Vec<String>,
    /// What it sees.
    pub sees: Vec<String>,
    /// What it waits for.
    pub waits: Vec<Wait>,
    /// What went wrong last.
    pub errors: Vec<Trouble>,
    /// The start, step by step.
    pub timeline: Vec<Past>,
    /// UIDs of earlier pods of the same name.
    pub earlier: Vec<String>,
    /// Lines that the disk was too slow for.
    pub lost: u64,
}

/// A step with its container.
#[must_use]
pub fn title(step: Step, container: Option<&str>) -> String {
    match container {
        Some(container) => format!("{} of {container}", step.name()),
        None => step.name().to_owned(),
    }
}

/// What a status says of a step that takes long.
#[must_use]
pub fn waiting_for(step: Step, container: Option<&str>, since: i64) -> String {
    format!("waiting for {} since {}", title(step, container), time(since))
}

/// A time to the second, as the API writes it.
#[must_use]
pub fn time(at: i64) -> String {
    Timestamp::from_second(at.div_euclid(1_000_000_000)).map(|t| t.to_string()).unwrap_or_default()
}

/// Explains the newest pod that these lines (of one name, oldest first) know at a time; `None` when they know none.
#[must_use]
pub fn explain(lines: &[Line], at: i64) -> Option<Explanation> {
    let until: Vec<&Line> = lines.iter().filter(|line| line.at <= at).collect();
    let newest = until.iter().rev().find(|line| !line.uid.is_empty())?;
    let mut earlier: Vec<String> = Vec::new();
    for uid in until.iter().map(|line| &line.uid).filter(|uid| !uid.is_empty() && **uid != newest.uid) {
        if !earlier.contains(uid) {
            earlier.push(uid.clone());
        }
    }
    let mut fold = Fold::default();
    for line in until.iter().filter(|line| line.uid.is_empty() || line.uid == newest.uid) {
        fold.take(line);
    }
    Some(fold.finish(&newest.pod, &newest.uid, at, earlier))
}

#[derive(Default)]
struct Fold {
    source: String,
    first: Option<i64>,
    open: BTreeMap<u64, (Step, Option<String>, i64)>,
    wants: Option<(i64, String)>,
    sees: Option<(i64, String)>,
    retry: Option<(i64, i64)>,
    errors: Vec<Trouble>,
    timeline: Vec<(i64, Past)>,
    started: bool,
    gone: bool,
    lost: u64,
}

impl Fold {
    fn take(&mut self, line: &Line) {
        match &line.what {
            // What was under way ended with the agent.
            What::AgentStarted => {
                self.open.clear();
                self.retry = None;
            }
            What::Lost(count) => self.lost += count,
            What::Source(source) => {
                self.gone = false;
                if self.first.is_none() {
                    (self.first, self.source) = (Some(line.at), source.clone());
                    self.past(line.at, format!("seen in source {source}"), None, line.text.clone());
                } else if !self.started {
                    self.past(line.at, "the agent was started again".into(), None, String::new());
                }
            }
            What::Begin(step, number) => {
                self.retry = None;
                self.open.insert(*number, (*step, line.container.clone(), line.at));
            }
            What::End(step, number, took) => {
                self.open.remove(number);
                self.step(line, *step, *took, line.text.clone());
            }
            What::Failed(step, number, took) => {
                self.open.remove(number);
                let name = title(*step, line.container.as_deref());
                self.trouble(line.at, format!("{name} failed: {}", line.text));
                self.step(line, *step, *took, "failed".into());
            }
            What::Dropped(step, number, took) => {
                self.open.remove(number);
                self.step(line, *step, *took, "given up: the pod has to end, or the agent stopped".into());
            }
            What::Retry(until) => self.retry = Some((line.at, *until)),
            What::Event(_) => {}
            What::Warning(reason) => self.trouble(line.at, format!("{reason}: {}", line.text)),
            What::Sees => self.sees = Some((line.at, line.text.clone())),
            What::Wants => {
                // A wish that stays is as old as its first telling.
                if self.wants.as_ref().is_none_or(|(_, text)| *text != line.text) {
                    self.wants = Some((line.at, line.text.clone()));
                }
            }
            What::Ready => {
                if !self.started {
                    self.past(line.at, "ready".into(), None, String::new());
                }
                self.started = true;
            }
            What::Gone => {
                self.retry = None;
                self.open.clear();
                self.gone = true;
            }
        }
    }

    /// A step of the start; later ones are no part of it.
    fn step(&mut self, line: &Line, step: Step, took: u64, text: String) {
        if !self.started {
            let began = line.at.saturating_sub_unsigned(took);
            self.past(began, title(step, line.container.as_deref()), Some(took), text);
        }
    }

    fn past(&mut self, at: i64, step: String, took_ns: Option<u64>, text: String) {
        let offset_ns = at - self.first.unwrap_or(at);
        self.timeline.push((at, Past { step, offset_ns, took_ns, text }));
    }

    fn trouble(&mut self, at: i64, text: String) {
        let known = self.errors.iter().position(|trouble| trouble.text == text);
        let count = known.map_or(0, |place| self.errors.remove(place).count);
        self.errors.push(Trouble { at_ns: at, text, count: count + 1 });
    }

    fn finish(mut self, pod: &str, uid: &str, at: i64, earlier: Vec<String>) -> Explanation {
        let wait = |on: String, since: i64| {
            let seconds = u64::try_from(at.saturating_sub(since) / 1_000_000_000).unwrap_or(0);
            Wait { on, since_ns: since, seconds }
        };
        let mut waits: Vec<Wait> = self
            .open
            .values()
            .map(|(step, container, since)| wait(title(*step, container.as_deref()), *since))
            .collect();
        let lines = |text: &Option<(i64, String)>| -> Vec<(i64, String)> {
            text.iter().flat_map(|(at, text)| text.lines().map(|line| (*at, line.to_owned()))).collect()
        };
        let (wants, sees) = (lines(&self.wants), lines(&self.sees));
        waits.extend(self.retry.map(|(since, until)| wait(format!("the next try, at {}", time(until)), since)));
        if !self.gone {
            let later = wants.iter().filter(|(_, line)| line.contains("(back-off "));
            waits.extend(later.map(|(since, line)| wait(format!("the time to {line}"), *since)));
            let unready =
                sees.iter().filter(|(_, line)| line.contains(", not ready") || line.contains("startup probe"));
            waits.extend(unready.map(|(since, line)| wait(format!("its probes: {line}"), *since)));
        }
        self.timeline.sort_by_key(|(at, _)| *at);
        let skip = self.errors.len().saturating_sub(ERRORS);
        let only = |list: Vec<(i64, String)>| list.into_iter().map(|(_, line)| line).collect();
        Explanation {
            pod: pod.to_owned(),
            uid: uid.to_owned(),
            source: self.source,
            at_ns: at,
            gone: self.gone,
            wants: if self.gone { Vec::new() } else { only(wants) },
            sees: if self.gone { vec!["nothing: everything of it is gone".into()] } else { only(sees) },
            waits,
            errors: self.errors.split_off(skip),
            timeline: self.timeline.into_iter().map(|(_, past)| past).collect(),
            earlier,
            lost: self.lost,
        }
    }
}

/// A duration as people read it.
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
fn long(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

impl Explanation {
    /// For people.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "milliseconds are shown")]
    pub fn text(&self) -> String {
        let mut out =
            format!("pod {} (UID {}, from source {}) at {}\n", self.pod, self.uid, self.source, time(self.at_ns));
        let mut list = |title: &str, lines: Vec<String>| {
            for (number, line) in lines.iter().enumerate() {
                let _ = writeln!(out, "{:<8}{line}", if number == 0 { title } else { "" });
            }
        };
        list("wants", self.wants.clone());
        list("sees", self.sees.clone());
        let waits = self.waits.iter().map(|w| format!("{}, since {} ({} s)", w.on, time(w.since_ns), w.seconds));
        list("waits", if self.waits.is_empty() { vec!["for nothing".into()] } else { waits.collect() });
        let errors = self.errors.iter().map(|e| {
            let count = if e.count > 1 { format!(" ({} times)", e.count) } else { String::new() };
            format!("{} {}{count}", time(e.at_ns), e.text)
        });
        list("errors", if self.errors.is_empty() { vec!["none".into()] } else { errors.collect() });
        if !self.timeline.is_empty() {
            out.push_str("start\n");
        }
        for past in &self.timeline {
            let took = past.took_ns.map(long).unwrap_or_default();
            let line =
                format!("  {:>10.3} s  {:<28} {took:>10}  {}", past.offset_ns as f64 / 1e9, past.step, past.text);
            let _ = writeln!(out, "{}", line.trim_end());
        }
        if !self.earlier.is_empty() {
            let _ = writeln!(out, "earlier pods of this name: {} (ask with --uid)", self.earlier.join(", "));
        }
        if self.lost > 0 {
            let _ = writeln!(out, "{} records are missing: the disk was too slow for them", self.lost);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64, uid: &str, container: Option<&str>, what: What, text: &str) -> Line {
        let pod = if uid.is_empty() { String::new() } else { "ns/web".to_owned() };
        Line {
            at: at * 1_000_000,
            uid: uid.into(),
            pod,
            container: container.map(str::to_owned),
            what,
            text: text.into(),
        }
    }

    /// The start of a pod whose image takes long, milliseconds.
    fn story() -> Vec<Line> {
        vec![
            line(0, "a", None, What::Source("api".into()), "created x"),
            line(1, "a", None, What::Begin(Step::Sandbox, 1), ""),
            line(201, "a", None, What::End(Step::Sandbox, 1, 200_000_000), "10.0.0.7"),
            line(201, "a", None, What::Wants, "start container main"),
            line(202, "a", Some("main"), What::Begin(Step::Image, 2), ""),
            line(1_202, "a", Some("main"), What::Warning("Failed".into()), "no such image"),
            line(1_203, "a", Some("main"), What::Failed(Step::Image, 2, 1_001_000_000), "no such image"),
            line(5_000, "a", Some("main"), What::Warning("Failed".into()), "no such image"),
            line(6_000, "a", Some("main"), What::Begin(Step::Image, 3), ""),
            line(9_000, "a", Some("main"), What::End(Step::Image, 3, 3_000_000_000), ""),
            line(9_500, "a", None, What::Sees, "phase Running\ncontainer main: running since t, ready"),
            line(9_500, "a", None, What::Ready, ""),
            line(20_000, "a", Some("main"), What::Begin(Step::Stop, 4), ""),
            line(21_000, "a", Some("main"), What::End(Step::Stop, 4, 1_000_000_000), ""),
            line(22_000, "a", None, What::Gone, ""),
            line(30_000, "b", None, What::Source("api".into()), ""),
            line(30_001, "b", None, What::Begin(Step::Volumes, 5), ""),
            line(40_000, "", None, What::AgentStarted, ""),
        ]
    }

    fn at(ms: i64) -> Explanation {
        explain(&story(), ms * 1_000_000).unwrap()
    }

    #[test]
    fn the_past_is_told_as_it_was() {
        assert_eq!(explain(&story(), -1), None);
        let during = at(7_500);
        assert_eq!(during.waits, [Wait { on: "image of main".into(), since_ns: 6_000_000_000, seconds: 1 }]);
        assert_eq!(during.wants, ["start container main"]);
        let texts: Vec<(&str, u32)> = during.errors.iter().map(|e| (e.text.as_str(), e.count)).collect();
        assert_eq!(texts, [("image of main failed: no such image", 1), ("Failed: no such image", 2)]);
        assert!(during.text().contains("waits   image of main, since 1970-01-01T00:00:06Z (1 s)"), "{}", during.text());
        let stopping = at(20_500);
        assert_eq!(stopping.waits[0].on, "stop of main");
        assert_eq!(stopping.sees.len(), 2);
        let gone = at(22_500);
        assert!(gone.gone && gone.waits.is_empty() && gone.wants.is_empty());
    }

    #[test]
    fn the_timeline_is_that_of_the_start() {
        let steps: Vec<(String, i64, Option<u64>)> = at(21_500)
            .timeline
            .into_iter()
            .map(|p| (p.step, p.offset_ns / 1_000_000, p.took_ns.map(|t| t / 1_000_000)))
            .collect();
        let expected = [
            ("seen in source api", 0, None),
            ("sandbox", 1, Some(200)),
            ("image of main", 202, Some(1_001)),
            ("image of main", 6_000, Some(3_000)),
            ("ready", 9_500, None),
        ];
        assert_eq!(steps, expected.map(|(name, at, took)| (name.to_owned(), at, took)));
    }

    #[test]
    fn a_successor_is_told_apart_and_a_restart_of_the_agent_ends_its_steps() {
        let now = at(35_000);
        assert_eq!((now.uid.as_str(), now.earlier.as_slice()), ("b", ["a".to_owned()].as_slice()));
        assert_eq!(now.waits[0].on, "volumes");
        assert!(at(41_000).waits.is_empty());
    }
}
