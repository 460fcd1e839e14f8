//! The fuzz targets of the agent, by the same fuzzer as those of the streams.

#[path = "../../streaming/tests/fuzzer/mod.rs"]
mod fuzzer;

use fuzzer::run;
use keelson_agent::fuzz;

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Bytes of many values, from which choices are made.
fn choices() -> Vec<Vec<u8>> {
    (1..=8u8).map(|step| (0..200u8).map(|i| i.wrapping_mul(step).wrapping_mul(37)).collect()).collect()
}

#[test]
fn manifests() {
    run(
        fuzz::manifest,
        texts(&[
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: a\n    image: busybox\n",
            "apiVersion: v1\nkind: PodList\nitems:\n- &a\n  metadata: {name: a, labels: &l {x: y}}\n  spec: {containers: [{name: c, image: i}]}\n- *a\n",
            "--- # first\nkind: Pod\n...\n---\n\"apiVersion\": !!str v1\n? kind\n: 'Pod'\nmetadata: {annotations: {a: |\n  b\n}}\n",
            "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\",\"ports\":[{\"containerPort\":0x1F}]}]}}",
            "a: &a [&b {c: *a}]\nd: *b\n<<: *b\n",
            "%YAML 1.2\n---\n- >-\n x\n- 0o17\n- -0x8000000000000000\n- 1e999\n- .inf\n- ~\n- \u{feff}\n",
        ]),
    );
}

#[test]
fn pods() {
    run(fuzz::pods, choices());
}

#[test]
fn actions() {
    run(fuzz::actions, choices());
}
