//! Admission webhooks over TLS, for tests that want one behind a Service. Each path is a webhook:
//!
//! | path | answer |
//! |---|---|
//! | `/allow-late` | yes, after 5 s |
//! | `/deny` | no |
//! | `/deny-marked` | no, if `data` or the labels of the object (the old one, at a deletion) say `webhook: deny` |
//! | `/mark-first` | `data.first: yes`, where `data.start` is `yes` |
//! | `/mark-second` | `data.second: yes`, where `data.first` is `yes` |
//! | `/init` | an init container, for a pod that has none |

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::Server;

/// Longest review that is read: both versions of the largest object that an API server takes.
const MAX_REVIEW: usize = 8 << 20;
const LATE: Duration = Duration::from_secs(5);

/// The TLS side, from `tls.crt` and `tls.key` of a folder, as a Secret of type `kubernetes.io/tls` mounts them.
pub fn acceptor(folder: &Path) -> io::Result<TlsAcceptor> {
    let wrong = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", folder.display()));
    let chain = CertificateDer::pem_file_iter(folder.join("tls.crt")).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| wrong(&error))?;
    let key = PrivateKeyDer::from_pem_file(folder.join("tls.key")).map_err(|error| wrong(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(&error))?.with_no_client_auth().with_single_cert(chain, key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(|error| wrong(&error))?)))
}

/// Answers on one connection until it or the server ends.
pub async fn serve(stream: TcpStream, acceptor: TlsAcceptor, server: Rc<Server>) {
    let closing = server.closing.clone();
    let connection = async {
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let answer = service_fn(move |request| answer(request, Rc::clone(&server)));
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    };
    tokio::select! {
        () = connection => {}
        () = closing.cancelled() => {}
    }
}

async fn answer(request: Request<Incoming>, server: Rc<Server>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    server.saw(format!("WEBHOOK {path}"));
    server.served.set(server.served.get() + 1);
    let body = Limited::new(request.into_body(), MAX_REVIEW).collect().await;
    let review = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok()).unwrap_or_default();
    if path == "/allow-late" {
        tokio::time::sleep(LATE).await;
    }
    let Some(mut said) = respond(&path, &review["request"]) else {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    };
    said["uid"] = review["request"]["uid"].clone();
    let answer = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": said });
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// What the webhook of a path says to a request; nothing where there is none.
fn respond(path: &str, request: &Value) -> Option<Value> {
    let object = if request["operation"] == "DELETE" { &request["oldObject"] } else { &request["object"] };
    let data = &object["data"];
    let yes = json!({ "allowed": true });
    let no = |message: &str| json!({ "allowed": false, "status": { "message": message } });
    let add = |path: &str, value: Value| {
        let patch = json!([{ "op": "add", "path": path, "value": value }]);
        json!({ "allowed": true, "patchType": "JSONPatch", "patch": BASE64_STANDARD.encode(patch.to_string()) })
    };
    Some(match path {
        "/allow-late" => yes,
        "/deny" => no("this webhook denies everything"),
        "/deny-marked" if data["webhook"] == "deny" || object["metadata"]["labels"]["webhook"] == "deny" => {
            no("this webhook denies what is marked so")
        }
        "/mark-first" if data["start"] == "yes" => add("/data/first", "yes".into()),
        "/mark-second" if data["first"] == "yes" => add("/data/second", "yes".into()),
        "/init" if object["spec"]["initContainers"].is_null() => {
            add("/spec/initContainers", json!([{ "name": "added", "image": "busybox:1.28" }]))
        }
        "/deny-marked" | "/mark-first" | "/mark-second" | "/init" => yes,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_denied() {
        let allowed = |path: &str, request: Value| respond(path, &request).map(|said| said["allowed"].clone());
        let marked = json!({ "data": { "webhook": "deny" } });
        assert_eq!(allowed("/deny-marked", json!({ "operation": "CREATE", "object": marked })), Some(json!(false)));
        assert_eq!(allowed("/deny-marked", json!({ "operation": "DELETE", "oldObject": marked })), Some(json!(false)));
        assert_eq!(allowed("/deny-marked", json!({ "operation": "CREATE", "object": {} })), Some(json!(true)));
        assert_eq!(allowed("/other", json!({})), None);
    }
}
