//! Static manifests are judged as the API server judges pods: the same tables, with file, line, column and field.

#[path = "../../control-plane/kinds/tests/cases/mod.rs"]
mod cases;

use std::path::Path;
use std::time::{Duration, Instant};

use keelson_agent::source::manifest::{self, Manifest};
use serde_json::Value;

const FILE: &str = "/m/p.yaml";

/// JSON over many lines is YAML, and the lines are worth something.
fn parse(pod: &Value) -> Result<Manifest, String> {
    let text = serde_json::to_string_pretty(pod).expect("JSON");
    manifest::parse(Path::new(FILE), &text, "node-1", "now").map_err(|error| error.to_string())
}

/// How manifests' errors write a field: keys in brackets become parts like the others.
fn shown(field: &str) -> String {
    let mut out = String::new();
    for (i, part) in field.split('[').enumerate() {
        match part.split_once(']') {
            Some((key, rest)) if i > 0 && key.parse::<usize>().is_err() => out.push_str(&format!(".{key}{rest}")),
            _ if i > 0 => out.push_str(&format!("[{part}")),
            _ => out.push_str(part),
        }
    }
    out
}

/// Each line begins with the file and a position.
fn is_placed(error: &str) -> bool {
    let place = error.strip_prefix(&format!("{FILE}:")).and_then(|rest| rest.split_once(": "));
    place.is_some_and(|(place, _)| place.split(':').count() == 2 && place.split(':').all(|n| n.parse::<u32>().is_ok()))
}

#[test]
fn wrong_pods_are_refused_with_line_and_field() {
    let mut failures = Vec::new();
    for case in cases::wrong().into_iter().filter(|case| case.is_static) {
        match parse(&case.pod) {
            Ok(_) => failures.push(format!("{} is accepted", case.shown)),
            Err(error) => {
                let missing = case.fields().into_iter().find(|field| !error.contains(&format!(": {}: ", shown(field))));
                if !is_placed(&error) || missing.is_some() {
                    failures.push(format!("{}\n  {missing:?} is not named in {error}", case.shown));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn values_of_the_wrong_type_are_refused_with_line_and_field() {
    for case in cases::undecodable() {
        let error = parse(&case.pod).map(drop).expect_err(&case.shown);
        assert!(is_placed(&error) && error.contains(&format!(": {}: ", case.field)), "{}: {error}", case.shown);
    }
}

#[test]
fn odd_but_good_pods_are_taken() {
    for case in cases::valid() {
        match (parse(&case.pod), case.is_static) {
            (Ok(found), true) => assert_eq!((found.pods.len(), found.unknown.len()), (1, 0), "{}", case.shown),
            (Err(error), true) => panic!("{} is refused: {error}", case.shown),
            (Ok(_), false) => panic!("{} is accepted", case.shown),
            (Err(error), false) => {
                let own = error.contains("static pod may not reference") || error.contains("schedulingGates");
                assert!(own, "{}: {error}", case.shown);
            }
        }
    }
    for (what, pod) in cases::huge() {
        let begun = Instant::now();
        parse(&pod).unwrap_or_else(|error| panic!("{what}: {error}"));
        // Some seconds of processor time; the clock of a busy machine runs faster.
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", begun.elapsed());
    }
}

/// What a hand or a program may leave in the folder: one error each, which names file, line and, if there is one, the field.
#[test]
fn hostile_texts_are_refused_in_time() {
    let pod = |metadata: &str, spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{metadata}}}\nspec:\n  containers: [{{name: c, image: i}}]\n{spec}"
        )
    };
    let good = pod("", "");
    let names = "n".repeat(100_000);
    let aliases: String =
        (1..12).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))).collect();
    let many: String = (0..100_000).map(|n| format!("  - {{name: A_{n}}}\n")).collect();
    for (what, text, parts) in [
        (
            "a bomb of aliases",
            format!("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{aliases}"),
            &[":6:", "more than 1000000 values"][..],
        ),
        (
            "a text repeated",
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a,".repeat(30)),
            &[":2:", "bytes of text"],
        ),
        ("an alias of itself", "a: &a [*a]\n".to_owned(), &[":1:8", "still open"]),
        ("deep lists", format!("a: {}\n", "[".repeat(100_000)), &[":1:", "limit exceeded"]),
        (
            "deep mappings",
            format!("{}x\n", (0..2000).map(|n| " ".repeat(n) + "a:\n").collect::<String>()),
            &[":101:", "nested deeper"],
        ),
        (
            "a long name",
            pod("", "").replace("name: p", &format!("name: {names}")),
            &[":3:", "metadata.name", "no more than 253", "left out"],
        ),
        ("a long key", pod(&format!(", {names}: x, labels: {{{names}: y}}"), ""), &[":3:", "metadata.labels"]),
        ("a NUL byte", pod("", "  hostname: \"a\0b\"\n"), &[":6:", "NUL"]),
        ("an escaped NUL", pod("", "  hostname: \"a\\0b\"\n"), &[":6:3: spec.hostname"]),
        ("a key twice", pod(", name: q", ""), &[":3:", "metadata.name", "\"name\" is given twice"]),
        (
            "two documents, one wrong",
            format!("{good}---\nkind: Service\napiVersion: v1\n"),
            &[":7:1: kind", "\"Service\""],
        ),
        ("a number", "5\n".to_owned(), &[":1:1", "must be a mapping"]),
        ("nothing but a list", "- a\n".to_owned(), &[":1:1", "must be a mapping"]),
        ("an open quote", "kind: \"Pod\nx: y\n".to_owned(), &["/m/p.yaml:"]),
        ("a tab", "kind:\n\t- a\n".to_owned(), &[":2:"]),
        ("a wrong tag", "kind: !!binary UG9k\n".to_owned(), &[":1:", "tag"]),
        (
            "items of another kind",
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret}\n".to_owned(),
            &[":4:", "items[0].kind"],
        ),
        ("items that are none", "apiVersion: v1\nkind: PodList\nitems: 5\n".to_owned(), &[":3:1: items", "list"]),
        (
            "a wrong type in an item",
            "apiVersion: v1\nkind: PodList\nitems:\n- spec:\n    containers: 7\n".to_owned(),
            &[":5:5: items[0].spec.containers"],
        ),
        (
            "many mistakes",
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n{many}"),
            &[":6:5: spec.containers[0].", "more mistakes"],
        ),
        ("a file that is too large", "#".repeat((10 << 20) + 1), &[":1:1", "10485760"]),
    ] {
        let begun = Instant::now();
        let error = manifest::parse(Path::new(FILE), &text, "node-1", "now").map(drop).expect_err(what).to_string();
        // Some seconds of processor time; the clock of a busy machine runs faster.
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", begun.elapsed());
        assert!(error.len() < 300_000 && error.starts_with(FILE), "{what}: {} bytes: {}", error.len(), &error[..200]);
        for part in parts {
            assert!(error.contains(part), "{what}: {part:?} is not in {}", &error[..error.len().min(3000)]);
        }
    }
    // Half a file is no reason to end what it gave before.
    for empty in ["", "---\n", "# nothing\n", "~\n", "\n\n---\n---\n"] {
        let error = manifest::parse(Path::new(FILE), empty, "n", "now").map(drop).expect_err(empty).to_string();
        assert!(error.starts_with(&format!("{FILE}:1:1: ")) && error.contains("no pod in it"), "{empty:?}: {error}");
    }
    let none = "apiVersion: v1\nkind: PodList\nitems: []\n";
    assert!(manifest::parse(Path::new(FILE), none, "n", "now").is_ok_and(|m| m.pods.is_empty()));
    let two = format!("\u{feff}{good}---\n{}", good.replace("name: p", "name: q"));
    assert_eq!(
        manifest::parse(Path::new(FILE), &two, "n", "now").map(|m| m.pods.len()).map_err(|e| e.to_string()),
        Ok(2)
    );
}
