//! What a pod's author asks of a node: probes, hooks, jobs, daemons, the container's privileges and limits, images, volumes.

#[path = "workloads/container.rs"]
mod container;
#[path = "workloads/jobs.rs"]
mod jobs;
#[path = "workloads/probes.rs"]
mod probes;
#[path = "workloads/registry.rs"]
mod registry;
#[path = "workloads/volumes.rs"]
mod volumes;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use keelson_tests::suite::{self, Test};
use serde_json::Value;

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("a_readiness_failure_takes_the_endpoint_out_and_back", probes::readiness),
        ("a_liveness_failure_restarts_the_container", probes::liveness),
        ("grpc_probes_ask_for_a_services_health", probes::grpc),
        ("what_others_write_into_a_status_is_read_and_kept", probes::gates),
        ("a_startup_probe_holds_the_others_back", probes::startup),
        ("a_startup_probe_that_never_passes_restarts", probes::startup_fails),
        ("a_probe_that_hangs_or_talks_too_much_fails_and_leaves_nothing", probes::hangs),
        ("hooks_run_after_the_start_and_before_the_end", probes::hooks),
        ("a_failing_start_hook_kills_the_container", probes::failing_hook),
        ("a_job_completes", jobs::completes),
        ("a_job_tries_again_and_fails_in_the_end", jobs::retries),
        ("users_groups_capabilities_and_a_read_only_root", container::restricted),
        ("the_defaults_and_a_privileged_container", container::privileges),
        ("a_container_that_may_not_be_root_does_not_start_as_root", container::never_root),
        ("requests_and_limits_reach_the_cgroups", container::resources),
        ("too_much_memory_is_told_as_oom_killed", container::out_of_memory),
        ("pods_that_do_not_fit_are_refused_or_wait_for_room", container::admission),
        ("host_network_is_the_nodes", container::host_network),
        ("images_are_pulled_always_never_or_when_missing", container::pulls),
        ("pulls_use_credentials_and_a_stalled_registry_holds_nobody_else", registry::registry),
        ("termination_messages_come_from_the_file_or_the_log", container::last_words),
        ("downward_and_projected_volumes_follow_their_sources", volumes::projected),
        ("sub_paths_are_files_and_folders_of_a_volume", volumes::sub_paths),
        ("modes_owners_and_memory_of_volumes", volumes::owners),
        // Last, for others look at the one node.
        ("a_daemon_set_follows_a_new_node", jobs::daemon_set),
    ];
    suite::main("workloads", 1, tests)
}

fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    Ok(())
}

/// The status of a pod's first container.
fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The reasons and messages of a namespace's events, one a line.
fn events(space: &keelson_tests::lab::Space<'_>) -> Result<String> {
    space.kubectl(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"])
}
