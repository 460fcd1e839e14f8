//! `agent explain` and `agent pods`: ask the running agent, or its files when none runs.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::{Timestamp, Zoned, civil};
use kube_common::duration::GoDuration;
use serde::Serialize;
use tokio::net::UnixStream;

use super::explain::{Explanation, time};
use super::serve::{self, Row};
use crate::clock;

/// Longest time an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two pictures of the live table.
const PICTURE: Duration = Duration::from_secs(1);
/// Moves to the upper left corner, and clears what is below.
const HOME: &str = "\x1b[H\x1b[J";

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// `agent explain`.
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// The pod: NAME or NAMESPACE/NAME
    pod: String,
    /// Its namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Answer for then, not for now: 2026-01-31T12:00:00Z, 12:00:05 (the last one, local time) or 10m (ago)
    #[arg(long)]
    at: Option<String>,
    /// One of several pods that had this name
    #[arg(long)]
    uid: Option<String>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// `agent pods`.
#[derive(Clone, Debug, Args)]
pub struct Pods {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Print one table and end, also on a terminal
    #[arg(long)]
    once: bool,
}

/// Writes to stdout; who reads may have gone.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes a value for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), String> {
    let value = serde_json::to_value(value).map_err(|e| e.to_string())?;
    print(&format!("{value:#}\n"));
    Ok(())
}

/// The socket's answer; the outer error means that nobody listens there.
async fn ask(socket: &Path, path: &str) -> Result<Result<Bytes, String>, std::io::Error> {
    let stream = UnixStream::connect(socket).await?;
    let fail =
        |error: &dyn std::fmt::Display| Ok(Err(format!("{} does not answer as an agent: {error}", socket.display())));
    let (mut sender, connection) = match hyper::client::conn::http1::handshake(TokioIo::new(stream)).await {
        Ok(pair) => pair,
        Err(error) => return fail(&error),
    };
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header("host", "agent").body(Empty::<Bytes>::new());
    let talk = async {
        let response = sender.send_request(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok::<_, String>((status, body))
    };
    let outcome = tokio::time::timeout(ANSWER_LIMIT, talk).await;
    connection.abort();
    match outcome {
        Err(_) => fail(&format!("nothing within {ANSWER_LIMIT:?}")),
        Ok(Err(error)) => fail(&error),
        Ok(Ok((StatusCode::OK, body))) => Ok(Ok(body)),
        Ok(Ok((_, body))) => Ok(Err(serde_json::from_slice(&body).unwrap_or_else(|_| "unknown answer".to_owned()))),
    }
}

/// The point in time that `--at` means, nanoseconds since the epoch.
fn point(text: &str, now: &Zoned) -> Result<i64, String> {
    let ns = |timestamp: Timestamp| i64::try_from(timestamp.as_nanosecond()).unwrap_or(i64::MAX);
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(ns(timestamp));
    }
    if let Ok(time) = text.parse::<civil::Time>() {
        let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).map_err(|e| e.to_string())?;
        let last = if today > *now { today.yesterday().map_err(|e| e.to_string())? } else { today };
        return Ok(ns(last.timestamp()));
    }
    if let Ok(ago) = GoDuration::parse(text) {
        return Ok(ns(now.timestamp()).saturating_sub_unsigned(u64::try_from(ago.0.as_nanos()).unwrap_or(u64::MAX)));
    }
    Err(format!("--at {text:?} is no time: give 2026-01-31T12:00:00Z, 12:00:05 or 10m (ago)"))
}

impl Explain {
    /// Asks the agent with this state directory.
    ///
    /// # Errors
    /// What a person has to know.
    pub async fn run(&self, root_dir: &Path) -> Result<(), String> {
        let (namespace, name) = self.pod.split_once('/').unwrap_or((&self.namespace, &self.pod));
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
        if !plain(namespace) || !plain(name) || !self.uid.as_deref().is_none_or(plain) {
            return Err(format!("{namespace}/{name} is no name of a pod"));
        }
        let at = self.at.as_deref().map(|text| point(text, &Zoned::now())).transpose()?;
        let mut path = format!("/explain?pod={namespace}/{name}");
        path.extend(at.map(|at| format!("&at={at}")));
        path.extend(self.uid.as_ref().map(|uid| format!("&uid={uid}")));
        let socket = serve::socket(root_dir);
        let explanation: Explanation = match ask(&socket, &path).await {
            Ok(body) => serde_json::from_slice(&body?).map_err(|e| format!("unknown answer: {e}"))?,
            Err(error) => {
                let pod = format!("{namespace}/{name}");
                let found = serve::from_files(root_dir, &pod, self.uid.as_deref(), at.unwrap_or_else(clock::now));
                eprintln!("agent: no agent answers on {} ({error}); this is from its files", socket.display());
                found?
            }
        };
        match self.output {
            Output::Text => print(&explanation.text()),
            Output::Json => print_json(&explanation)?,
        }
        Ok(())
    }
}

impl Pods {
    /// Asks the agent with this state directory.
    ///
    /// # Errors
    /// What a person has to know.
    pub async fn run(&self, root_dir: &Path) -> Result<(), String> {
        let socket: PathBuf = serve::socket(root_dir);
        let live = !self.once && self.output == Output::Text && std::io::stdout().is_terminal();
        loop {
            let body = ask(&socket, "/pods").await.map_err(|error| {
                format!(
                    "no agent answers on {} ({error}): is it running, and is this its --root-dir?",
                    socket.display()
                )
            })??;
            if self.output == Output::Json {
                let value: serde_json::Value = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
                return print_json(&value);
            }
            let rows: Vec<Row> = serde_json::from_slice(&body).map_err(|e| format!("unknown answer: {e}"))?;
            let table = table(&rows, clock::now());
            if !live {
                print(&table);
                return Ok(());
            }
            print(&format!("{HOME}{} pods at {}, Ctrl-C ends\n\n{table}", rows.len(), time(clock::now())));
            tokio::time::sleep(PICTURE).await;
        }
    }
}

/// A time span in the short form of kubectl.
fn age(ns: i64) -> String {
    match ns / 1_000_000_000 {
        s @ ..120 => format!("{}s", s.max(0)),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

fn table(rows: &[Row], now: i64) -> String {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (&row.namespace, &row.name));
    let heads = ["NAMESPACE", "NAME", "PHASE", "READY", "RESTARTS", "AGE", "IP", "NOW"].map(str::to_owned);
    let mut cells = vec![heads];
    cells.extend(rows.into_iter().map(|row| {
        let doing = row.doing.as_ref().map(|step| match row.doing_since_ns {
            Some(since) => format!("{step} for {}", age(now - since)),
            None => step.clone(),
        });
        [
            row.namespace.clone(),
            row.name.clone(),
            row.phase.clone(),
            format!("{}/{}", row.ready, row.containers),
            row.restarts.to_string(),
            if row.started_ns > 0 { age(now - row.started_ns) } else { "-".into() },
            if row.ip.is_empty() { "-".into() } else { row.ip.clone() },
            doing.or_else(|| row.waiting.clone()).unwrap_or_default(),
        ]
    }));
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..cells[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &cells {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time_are_read_in_three_forms() {
        let now: Zoned = "2026-05-04T12:00:00+02:00[+02:00]".parse().unwrap();
        let at = |text: &str| point(text, &now).map(time);
        assert_eq!(at("2026-05-04T09:58:00Z").unwrap(), "2026-05-04T09:58:00Z");
        assert_eq!(at("11:59:30").unwrap(), "2026-05-04T09:59:30Z");
        assert_eq!(at("12:30").unwrap(), "2026-05-03T10:30:00Z");
        assert_eq!(at("1m30s").unwrap(), "2026-05-04T09:58:30Z");
        assert!(at("soon").unwrap_err().contains("is no time"));
    }

    #[test]
    fn the_table_names_what_a_pod_is_doing() {
        let second = 1_000_000_000;
        let mut row = Row {
            namespace: "b".into(),
            name: "web".into(),
            phase: "Running".into(),
            ready: 1,
            containers: 2,
            ..Row::default()
        };
        row.started_ns = second;
        row.doing = Some("image of main".into());
        row.doing_since_ns = Some(98 * second);
        let other =
            Row { namespace: "a".into(), name: "x".into(), waiting: Some("CrashLoopBackOff".into()), ..Row::default() };
        let text = table(&[row, other], 101 * second);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with('a') && lines[1].ends_with("-   CrashLoopBackOff"), "{text}");
        assert_eq!(lines[2], "b          web   Running  1/2    0         100s  -   image of main for 3s", "{text}");
    }
}
