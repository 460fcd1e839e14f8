//! Requests as such: options in the query, answers to HEAD, bodies that nobody reads, dry runs.

mod common;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use common::Api;
use http::{Method, Request, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use keelson_control_plane::auth::User;
use keelson_control_plane::http::ApiService;
use keelson_control_plane::http::body::MAX_REQUEST_BYTES;
use serde_json::{Value, json};
use tower::Service;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

/// A body of so many pieces, which counts those that were read.
struct Pieces {
    left: usize,
    read: Arc<AtomicUsize>,
}

const PIECE: usize = 64 << 10;

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.read.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b' '; PIECE])))))
    }
}

#[tokio::test]
async fn a_body_is_read_to_its_end_before_an_early_refusal() {
    let api = Api::start().await;
    let pieces = 2 * MAX_REQUEST_BYTES / PIECE;
    for (method, path, status) in [
        (Method::POST, MAPS, StatusCode::PAYLOAD_TOO_LARGE),
        (Method::POST, "/api/v1/nonsense", StatusCode::NOT_FOUND),
        (Method::OPTIONS, MAPS, StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let read = Arc::new(AtomicUsize::new(0));
        let body = Pieces { left: pieces, read: Arc::clone(&read) };
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let mut service = ApiService::internal(Arc::clone(&api.server), User::internal("admin"));
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(read.load(Ordering::Relaxed), pieces, "{path}");
    }
    // But not without end.
    let read = Arc::new(AtomicUsize::new(0));
    let body = Pieces { left: usize::MAX, read: Arc::clone(&read) };
    let request = Request::builder().method(Method::POST).uri(MAPS).body(body).unwrap();
    let mut service = ApiService::internal(Arc::clone(&api.server), User::internal("admin"));
    assert_eq!(service.call(request).await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(read.load(Ordering::Relaxed) < 10 * pieces);
}

#[tokio::test]
async fn answers_to_head_have_no_content() {
    let api = Api::start().await;
    api.post(MAPS, &map("m")).await.expect(201);
    for (path, status) in [(format!("{MAPS}/m"), 200), (format!("{MAPS}/none"), 404), ("/version".to_owned(), 200)] {
        let request = Request::builder().method(Method::HEAD).uri(&path).body(http_body_util::Full::default()).unwrap();
        let service = ApiService::internal(Arc::clone(&api.server), User::internal("admin"));
        let (parts, body) = api.raw(service, request).await.into_parts();
        assert_eq!(parts.status.as_u16(), status, "{path}");
        assert!(parts.headers.contains_key(header::CONTENT_LENGTH), "{path}");
        assert!(body.collect().await.unwrap().to_bytes().is_empty(), "{path}");
    }
}

#[tokio::test]
async fn delete_options_of_the_query_are_judged() {
    let api = Api::start().await;
    api.post(MAPS, &map("m")).await.expect(201);
    let background = json!({"propagationPolicy": "Background"});
    for (query, body, message) in [
        ("propagationPolicy=Foo", Value::Null, "propagationPolicy"),
        ("propagationPolicy=Orphan&orphanDependents=true", Value::Null, "cannot be both set"),
        ("orphanDependents=true", background.clone(), "cannot be both set"),
        ("dryRun=foo", Value::Null, "DeleteOptions"),
    ] {
        let error = api.delete(&format!("{MAPS}/m?{query}"), &body).await.expect(422);
        assert!(error["message"].as_str().unwrap().contains(message), "{query}: {error}");
        assert_eq!(error["details"]["kind"], "DeleteOptions", "{query}");
        api.get(&format!("{MAPS}/m")).await.expect(200);
    }
    api.delete(&format!("{MAPS}/m?gracePeriodSeconds=x"), &Value::Null).await.expect(400);
    api.delete(&format!("{MAPS}/m?dryRun=All"), &Value::Null).await.expect(200);
    api.get(&format!("{MAPS}/m")).await.expect(200);
    api.delete(&format!("{MAPS}/m?propagationPolicy=Foreground"), &background).await.expect(200);
}

#[tokio::test]
async fn a_dry_run_keeps_the_resource_version() {
    let api = Api::start().await;
    let stored = api.post(MAPS, &map("m")).await.expect(201);
    let version = &stored["metadata"]["resourceVersion"];
    assert!(version.is_string());
    let change = json!({"data": {"a": "c"}});
    let patched = api.patch(&format!("{MAPS}/m?dryRun=All"), "merge-patch", &change).await.expect(200);
    assert_eq!((&patched["metadata"]["resourceVersion"], &patched["data"]["a"]), (version, &json!("c")));
    let put = api.put(&format!("{MAPS}/m?dryRun=All"), &map("m")).await.expect(200);
    assert_eq!(&put["metadata"]["resourceVersion"], version);
    assert_eq!(&api.get(&format!("{MAPS}/m")).await.expect(200), &stored);
}

#[tokio::test]
async fn who_fights_for_the_kubernetes_service_gets_no_write_loop() {
    let api = Api::start().await;
    let right = api.get(ENDPOINTS).await.expect(200)["subsets"].clone();
    let wrong = json!({"subsets": null});
    let mut repairs = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(3);
    while tokio::time::Instant::now() < end {
        if api.get(ENDPOINTS).await.expect(200)["subsets"] == right {
            api.patch(ENDPOINTS, "merge-patch", &wrong).await.expect(200);
            repairs += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Broken, repaired at once, broken again, and then left for a while; one more if the first was before the watch.
    assert!((2..=3).contains(&repairs), "{repairs}");
    api.get(SERVICE).await.expect(200);
}

#[tokio::test]
async fn families_that_the_cluster_lacks_are_refused() {
    let api = Api::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |extra: Value| {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "s-"},
            "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}});
        service["spec"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        service
    };
    for (extra, message) in [
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
    ] {
        let error = api.post(services, &service(extra)).await.expect(422);
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
    for fine in [
        json!({"ipFamilies": ["IPv4"]}),
        json!({"ipFamilyPolicy": "PreferDualStack"}),
        json!({"clusterIP": "None", "selector": null, "ipFamilyPolicy": "RequireDualStack"}),
    ] {
        api.post(services, &service(fine)).await.expect(201);
    }
}

#[tokio::test]
async fn an_eviction_by_another_name_evicts_nobody() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", &account).await;
    api.post(pods, &pod).await.expect(201);
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let error = api.post(&format!("{pods}/p/eviction"), &eviction("other")).await.expect(400);
    assert_eq!(error["message"], "name in URL does not match name in Eviction object");
    api.get(&format!("{pods}/p")).await.expect(200);
    api.post(&format!("{pods}/p/eviction"), &eviction("p")).await.expect(201);
}
