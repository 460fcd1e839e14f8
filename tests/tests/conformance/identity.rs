//! Who somebody is and what they may: tokens in pods, the issuer's documents, reviews, signing requests.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::{pod, pod_of, shell};
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::{Value, json};

use super::verbs::Kind;

tests![mounted_token, projected_token, issuer_discovery, reviews, signing_requests];

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

// [sig-auth] ServiceAccounts should mount an API token into pods [Conformance]
fn mounted_token(lab: &Lab) -> Result<()> {
    let space = lab.quarter("mounted-token")?;
    space.make("serviceaccounts", &json!({ "metadata": { "name": "mounting" } }))?;
    let files = ["token", "ca.crt", "namespace"];
    let mut one = pod_of("mounts", json!(files.map(|file| shell(&format!("cat {MOUNT}/{file}")))));
    one["spec"]["serviceAccountName"] = json!("mounting");
    one["spec"]["automountServiceAccountToken"] = json!(true);
    space.make("pods", &one)?;
    let ended = space.ended("mounts")?;
    ensure!(ended["status"]["phase"] == "Succeeded", "{}", ended["status"]);
    let read = |at: usize| space.log("mounts", ended["spec"]["containers"][at]["name"].as_str().unwrap_or_default());
    let review =
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": read(0)? } });
    let told = lab.api()?.create("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
    let user = &told["status"]["user"];
    ensure!(user["username"] == format!("system:serviceaccount:{}:mounting", space.name), "{told}");
    for group in ["system:serviceaccounts", &format!("system:serviceaccounts:{}", space.name)] {
        ensure!(user["groups"].as_array().is_some_and(|groups| groups.iter().any(|g| g == group)), "{group}: {told}");
    }
    let root = space.read("configmaps/kube-root-ca.crt")?["data"]["ca.crt"].clone();
    ensure!(root == read(1)?.as_str(), "another root certificate");
    ensure!(read(2)? == space.name, "another namespace");
    Ok(())
}

/// A pod with a token for an audience at `/tokens/token`.
fn with_token(name: &str, script: &str, audience: Option<&str>) -> Value {
    let mut container = shell(script);
    container["volumeMounts"] = json!([{ "name": "tokens", "mountPath": "/tokens" }]);
    let mut one = pod(name, container);
    let mut token = json!({ "path": "token", "expirationSeconds": 3600 });
    if let Some(audience) = audience {
        token["audience"] = json!(audience);
    }
    one["spec"]["volumes"] =
        json!([{ "name": "tokens", "projected": { "sources": [{ "serviceAccountToken": token }] } }]);
    one
}

/// A part of a token in JSON.
fn part(token: &str, at: usize) -> Result<Value> {
    let text = token.split('.').nth(at).context("too few parts")?;
    Ok(serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text)?)?)
}

// [sig-auth] ServiceAccounts should mount projected service account token [Conformance]
fn projected_token(lab: &Lab) -> Result<()> {
    let space = lab.quarter("projected-token")?;
    let token = space.says(&with_token("projected", "cat /tokens/token", Some("somebody-else")))?;
    let claims = part(&token, 1)?;
    ensure!(claims["aud"] == json!(["somebody-else"]), "{claims}");
    ensure!(claims["kubernetes.io"]["pod"]["name"] == "projected", "{claims}");
    let lasts = claims["exp"].as_i64().context("exp")? - claims["iat"].as_i64().context("iat")?;
    ensure!((3500..=3700).contains(&lasts), "it lasts {lasts} s");
    Ok(())
}

// [sig-auth] ServiceAccounts ServiceAccountIssuerDiscovery should support OIDC discovery of service account issuer [Conformance]
fn issuer_discovery(lab: &Lab) -> Result<()> {
    let space = lab.quarter("issuer")?;
    let token = space.says(&with_token("known", "cat /tokens/token", None))?;
    // Whoever has a token of a service account may read the documents by which others verify it.
    let as_pod = |path: &str| -> Result<Value> {
        let who = format!("--as=system:serviceaccount:{}:default", space.name);
        let text = lab.kubectl(&[
            "get",
            "--raw",
            path,
            &who,
            "--as-group=system:serviceaccounts",
            "--as-group=system:authenticated",
        ])?;
        serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
    };
    let document = as_pod("/.well-known/openid-configuration")?;
    let (header, claims) = (part(&token, 0)?, part(&token, 1)?);
    ensure!(document["issuer"] == claims["iss"] && claims["iss"].is_string(), "{document} {claims}");
    let algorithms = document["id_token_signing_alg_values_supported"].as_array().context("no algorithms")?;
    ensure!(algorithms.contains(&header["alg"]), "{document} {header}");
    let uri = document["jwks_uri"].as_str().context("no jwks_uri")?;
    let keys = as_pod(uri.split_once("//").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).context("uri")?)?;
    let key = keys["keys"].as_array().into_iter().flatten().find(|key| key["kid"] == header["kid"]).context("kid")?;
    ensure!(key["alg"] == "ES256" && key["crv"] == "P-256", "{key}");
    let mut point = vec![4];
    for axis in ["x", "y"] {
        point.extend(BASE64_URL_SAFE_NO_PAD.decode(key[axis].as_str().context("a point without its parts")?)?);
    }
    let (signed, signature) = token.rsplit_once('.').context("no signature")?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature)?;
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
    ensure!(key.verify(signed.as_bytes(), &signature).is_ok(), "the published key does not verify the token");
    ensure!(key.verify(b"something else", &signature).is_err());
    Ok(())
}

// [sig-auth] SubjectReview should support SubjectReview API operations [Conformance]
fn reviews(lab: &Lab) -> Result<()> {
    let space = lab.quarter("subject-reviews")?;
    space.make("serviceaccounts", &json!({ "metadata": { "name": "reviewed" } }))?;
    let user = format!("system:serviceaccount:{}:reviewed", space.name);
    let spec = |verb: &str, resource: &str| {
        json!({ "user": user,
        "resourceAttributes": { "verb": verb, "resource": resource, "namespace": space.name, "version": "v1" } })
    };
    let review = |path: &str, kind: &str, verb: &str, resource: &str| -> Result<bool> {
        let body = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": kind,
            "metadata": if kind.starts_with("Local") { json!({ "namespace": space.name }) } else { json!({}) },
            "spec": spec(verb, resource) });
        let told = lab.api()?.create(path, &body)?;
        told["status"]["allowed"].as_bool().with_context(|| format!("{told}"))
    };
    let local = format!("/apis/authorization.k8s.io/v1/namespaces/{}/localsubjectaccessreviews", space.name);
    let role = json!({ "metadata": { "name": "reads" }, "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["list"] }] });
    space.make("rbac.authorization.k8s.io/v1/roles", &role)?;
    let binding = json!({ "metadata": { "name": "reads" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads" },
        "subjects": [{ "kind": "ServiceAccount", "name": "reviewed", "namespace": space.name }] });
    space.make("rbac.authorization.k8s.io/v1/rolebindings", &binding)?;
    for (verb, resource, allowed) in
        [("list", "secrets", true), ("create", "secrets", false), ("list", "configmaps", false)]
    {
        // What the account itself meets.
        let who = format!("--as={user}");
        let asked = ["kubectl", "-n", space.name.as_str(), "auth", "can-i", verb, resource, who.as_str()];
        let said = String::from_utf8(lab.command().args(asked).output()?.stdout)?;
        let own = match said.trim() {
            "yes" => true,
            "no" => false,
            other => anyhow::bail!("kubectl auth can-i says {other:?}"),
        };
        let whole =
            review("/apis/authorization.k8s.io/v1/subjectaccessreviews", "SubjectAccessReview", verb, resource)?;
        let here = review(&local, "LocalSubjectAccessReview", verb, resource)?;
        ensure!((own, whole, here) == (allowed, allowed, allowed), "{verb} {resource}: {own} {whole} {here}");
    }
    Ok(())
}

/// A request that is signed by nobody here.
fn request() -> Result<Value> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut asked = rcgen::CertificateParams::default();
    asked.distinguished_name.push(rcgen::DnType::CommonName, "somebody");
    let pem = asked.serialize_request(&key)?.pem()?;
    let text = base64::prelude::BASE64_STANDARD.encode(pem);
    Ok(json!({ "request": text, "signerName": "example.com/e2e", "usages": ["digital signature", "key encipherment"],
        "expirationSeconds": 3600 }))
}

// [sig-auth] Certificates API [Privileged:ClusterAdmin] should support CSR API operations [Conformance]
fn signing_requests(lab: &Lab) -> Result<()> {
    let api = "certificates.k8s.io/v1";
    let plural = "certificatesigningrequests";
    let kind =
        Kind { api, kind: "CertificateSigningRequest", plural, namespace: None, body: json!({ "spec": request()? }) };
    kind.discovered(lab)?;
    kind.with_status(lab)?;
    kind.verbs(lab)?;
    // The two subresources.
    let all = format!("/apis/{api}/{plural}");
    let one = format!("{all}/approved-here");
    lab.api()?.create(&all, &kind.object("approved-here", "approved"))?;
    let approval = format!("{one}/approval");
    let condition = json!({ "type": "Approved", "status": "True", "reason": "E2E", "message": "set from a test" });
    let mut asked = lab.api()?.get(&approval)?;
    asked["status"]["conditions"] = json!([condition]);
    let approved = lab.api()?.replace(&approval, &asked)?;
    ensure!(approved["status"]["conditions"][0]["type"] == "Approved", "{approved}");
    let patched =
        lab.api()?.patch(&approval, Patch::Merge, &json!({ "metadata": { "annotations": { "patched": "yes" } } }))?;
    ensure!(patched["status"]["conditions"][0]["type"] == "Approved", "{patched}");
    let status = format!("{one}/status");
    let mut asked = lab.api()?.get(&status)?;
    let failed = json!({ "type": "Failed", "status": "True", "reason": "E2E", "message": "set from a test" });
    let conditions = asked["status"]["conditions"].as_array_mut().context("no conditions")?;
    conditions.push(failed);
    let updated = lab.api()?.replace(&status, &asked)?;
    ensure!(updated["status"]["conditions"].as_array().is_some_and(|all| all.len() == 2), "{updated}");
    let told = lab.api()?.patch(&status, Patch::Merge, &json!({ "metadata": { "annotations": { "told": "yes" } } }))?;
    ensure!(told["status"]["conditions"] == updated["status"]["conditions"], "{told}");
    lab.api()?.delete(&one)?;
    lab.api()?.absent(&one)
}
