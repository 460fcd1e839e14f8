//! The names that public manifests give to the images.
//!
//! Tags are listed one by one, because a tag that upstream never published (`nginx:1.161`, the typo in Kubernetes' own tutorial on
//! failed rollouts) must go on failing.

const PAUSE: &[&str] = &["3.5", "3.6", "3.7", "3.8", "3.9", "3.10", "3.10.1", "latest"];

const BUSYBOX: &[&str] = &[
    "latest",
    "stable",
    "glibc",
    "musl",
    "uclibc",
    "stable-glibc",
    "stable-musl",
    "1",
    "1.24",
    "1.25",
    "1.26",
    "1.27",
    "1.27.2",
    "1.28",
    "1.28.0",
    "1.28.3",
    "1.28.4",
    "1.29",
    "1.29.2",
    "1.29.3",
    "1.30",
    "1.30.1",
    "1.31",
    "1.31.0",
    "1.31.1",
    "1.32",
    "1.32.0",
    "1.33",
    "1.33.1",
    "1.34",
    "1.34.1",
    "1.35",
    "1.35.0",
    "1.36",
    "1.36.0",
    "1.36.1",
    "1.37",
    "1.37.0",
];
const BUSYBOX_K8S: &[&str] = &["latest", "1.24", "1.27", "1.27.2"];
const BUSYBOX_E2E: &[&str] = &["1.29-1", "1.29-2", "1.29-4", "1.36.1-1", "1.37.0-1"];

const NGINX: &[&str] = &[
    "latest",
    "stable",
    "mainline",
    "alpine",
    "alpine-slim",
    "stable-alpine",
    "mainline-alpine",
    "perl",
    "1",
    "1-alpine",
    "1.7.9",
    "1.8",
    "1.8.1",
    "1.9",
    "1.9.1",
    "1.10",
    "1.10.1",
    "1.11",
    "1.11.9",
    "1.12",
    "1.12.2",
    "1.13",
    "1.13.0",
    "1.13.12",
    "1.14",
    "1.14.0",
    "1.14.1",
    "1.14.2",
    "1.14-alpine",
    "1.15",
    "1.15.2",
    "1.15.4",
    "1.15.12",
    "1.15-alpine",
    "1.16",
    "1.16.0",
    "1.16.1",
    "1.17",
    "1.17.0",
    "1.17.1",
    "1.17.10",
    "1.18",
    "1.18.0",
    "1.18-alpine",
    "1.19",
    "1.19.0",
    "1.19.1",
    "1.19.2",
    "1.19.6",
    "1.19.10",
    "1.19-alpine",
    "1.20",
    "1.20.0",
    "1.20.1",
    "1.20.2",
    "1.20-alpine",
    "1.21",
    "1.21.0",
    "1.21.1",
    "1.21.3",
    "1.21.4",
    "1.21.5",
    "1.21.6",
    "1.21-alpine",
    "1.22",
    "1.22.0",
    "1.22.1",
    "1.23",
    "1.23.0",
    "1.23.1",
    "1.23.2",
    "1.23.3",
    "1.23.4",
    "1.23-alpine",
    "1.24",
    "1.24.0",
    "1.25",
    "1.25.0",
    "1.25.1",
    "1.25.2",
    "1.25.3",
    "1.25.4",
    "1.25.5",
    "1.25-alpine",
    "1.26",
    "1.26.0",
    "1.26.1",
    "1.26.2",
    "1.27",
    "1.27.0",
    "1.27.1",
    "1.27.2",
    "1.27.3",
    "1.27.4",
    "1.27.5",
    "1.27-alpine",
    "1.28",
    "1.28.0",
    "1.29",
    "1.29.0",
    "1.29.1",
    "1.29-alpine",
];
const NGINX_E2E: &[&str] = &["1.14-1", "1.14-2", "1.14-4", "1.15-1", "1.15-2", "1.15-4"];
const NGINX_SLIM: &[&str] = &["0.7", "0.8", "0.20", "0.21", "0.24", "0.26", "0.27"];

const REDIS: &[&str] = &[
    "latest", "alpine", "bookworm", "3", "3.2", "4", "4.0", "5", "5.0", "5.0.4", "6", "6.0", "6.0.5", "6.0.8", "6.2",
    "6.2.6", "6-alpine", "7", "7.0", "7.0.15", "7.2", "7.4", "7-alpine", "8", "8.0", "8.0.2",
];
const REDIS_K8S: &[&str] = &["e2e", "v1"];
const REDIS_E2E: &[&str] = &["5.0.5-alpine", "5.0.5-3"];
const REDIS_FOLLOWER: &[&str] = &["v1", "v2", "v3"];
const PYTHON: &[&str] = &[
    "latest",
    "slim",
    "alpine",
    "bookworm",
    "slim-bookworm",
    "3",
    "3-slim",
    "3-alpine",
    "3.6",
    "3.7",
    "3.8",
    "3.8-slim",
    "3.9",
    "3.9-slim",
    "3.10",
    "3.10-slim",
    "3.10-alpine",
    "3.11",
    "3.11-slim",
    "3.11-alpine",
    "3.11-bookworm",
    "3.11-slim-bookworm",
    "3.12",
    "3.12-slim",
    "3.12-alpine",
    "3.13",
    "3.13-slim",
    "3.13-alpine",
];
const GUESTBOOK: &[&str] = &["v3", "v4", "v5", "v6"];

const TEST_SERVER: &[&str] = &["latest", "1"];

/// Tags of busybox and nginx that nodes have from the start. Each name costs a node a transaction of its containerd, and an image that
/// is there under one name is pulled under another in a moment.
const IMPORTED: &[&str] = &["latest", "1.14.2", "1.25", "1.28", "1.36"];

/// Those of an image's names under which it is imported; the others are pulled when they are asked for.
pub fn imported(names: &[String]) -> Vec<String> {
    let few = |name: &String| {
        let tagged = ["docker.io/library/busybox:", "docker.io/library/nginx:"]
            .iter()
            .find_map(|name_of| name.strip_prefix(name_of));
        tagged.map_or(!name.contains("/busybox:") && !name.contains("/nginx"), |tag| IMPORTED.contains(&tag))
    };
    names.iter().filter(|name| few(name)).cloned().collect()
}

/// Full names of the pause image.
pub fn pause() -> Vec<String> {
    tags(&["registry.k8s.io/pause"], PAUSE)
}

/// Full names of the busybox image.
pub fn busybox() -> Vec<String> {
    let mut names = tags(&["docker.io/library/busybox"], BUSYBOX);
    names.extend(tags(&["registry.k8s.io/busybox"], BUSYBOX_K8S));
    names.extend(tags(&["registry.k8s.io/e2e-test-images/busybox"], BUSYBOX_E2E));
    names
}

/// Full names of the nginx image.
pub fn nginx() -> Vec<String> {
    let mut names = tags(&["docker.io/library/nginx"], NGINX);
    names.extend(tags(&["registry.k8s.io/e2e-test-images/nginx"], NGINX_E2E));
    names.extend(tags(&["registry.k8s.io/nginx-slim"], NGINX_SLIM));
    names
}

/// Full names of the redis image.
pub fn redis() -> Vec<String> {
    let mut names = tags(&["docker.io/library/redis"], REDIS);
    names.extend(tags(&["registry.k8s.io/redis", "k8s.gcr.io/redis"], REDIS_K8S));
    names.extend(tags(&["registry.k8s.io/e2e-test-images/redis"], REDIS_E2E));
    names
}

/// Full names of the guestbook's redis that follows `redis-master`.
pub fn redis_follower() -> Vec<String> {
    tags(&["gcr.io/google_samples/gb-redisslave", "gcr.io/google-samples/gb-redisslave"], REDIS_FOLLOWER)
}

/// Full names of the guestbook's redis that follows `redis-leader`, as its later edition calls it.
pub fn redis_follower_gke() -> Vec<String> {
    let repositories = [
        "us-docker.pkg.dev/google-samples/containers/gke/gb-redis-follower",
        "gcr.io/google_samples/gb-redis-follower",
        "gcr.io/google-samples/gb-redis-follower",
    ];
    tags(&repositories, &["v1", "v2"])
}

/// Full names of the Python image.
pub fn python() -> Vec<String> {
    tags(&["docker.io/library/python"], PYTHON)
}

/// Full names of the guestbook's front end.
pub fn guestbook() -> Vec<String> {
    let repositories = [
        "gcr.io/google-samples/gb-frontend",
        "gcr.io/google_samples/gb-frontend",
        "us-docker.pkg.dev/google-samples/containers/gke/gb-frontend",
    ];
    tags(&repositories, GUESTBOOK)
}

/// Full names of the test server's image.
pub fn test_server() -> Vec<String> {
    tags(&["keelson.dev/test-server"], TEST_SERVER)
}

fn tags(repositories: &[&str], tags: &[&str]) -> Vec<String> {
    repositories.iter().flat_map(|repository| tags.iter().map(move |tag| format!("{repository}:{tag}"))).collect()
}
