//! A cluster through the real kubectl: every line of "What must be shown" that a person types.

use std::io::{BufRead, BufReader};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::manifests;
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("get_nodes_wide", get_nodes_wide),
        ("get_pods_of_all_namespaces_wide", get_pods_wide),
        ("create_deployment_expose_scale", create_expose_scale),
        ("rollout_status_restart_undo_and_set_image", rollout),
        ("describe_pod_node_service", describe),
        ("logs_follow_tail_previous_timestamps", logs),
        ("apply_diff_delete_of_public_manifests", public_manifests),
        ("get_events", events),
        ("explain_pod_spec_containers", explain),
        ("get_as_json_yaml_wide_jsonpath", outputs),
        ("wait_for_conditions_and_deletion", waits),
        ("get_watch_sees_changes", watch),
        ("edit_patch_label_annotate", patches),
        ("a_namespace_takes_its_contents_along", namespace_deletion),
        ("environment_volumes_and_init_containers", pod_features),
        ("the_api_server_answers_a_pod", api_from_a_pod),
        ("a_list_is_applied_and_its_mistakes_are_found_by_the_client", lists),
    ];
    suite::main("cluster", 1, tests)
}

fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    Ok(())
}

fn get_nodes_wide(lab: &Lab) -> Result<()> {
    let address = lab.address("node-1")?.to_string();
    let text = lab.kubectl(&["get", "nodes", "-o", "wide"])?;
    contains(
        &text,
        &["NAME", "STATUS", "INTERNAL-IP", "CONTAINER-RUNTIME", "node-1", " Ready ", &address, "containerd://"],
    )
}

fn get_pods_wide(lab: &Lab) -> Result<()> {
    let text = lab.kubectl(&["get", "pods", "-A", "-o", "wide"])?;
    contains(
        &text,
        &["NAMESPACE", "READY", "RESTARTS", "NOMINATED NODE", "hello-", "1/1", "Running", "10.244.", "node-1"],
    )?;
    ensure!(text.matches("hello-").count() == 3, "{text}");
    Ok(())
}

fn create_expose_scale(lab: &Lab) -> Result<()> {
    let space = lab.space("create")?;
    space.kubectl(&["create", "deployment", "web", "--image=nginx:1.14.2", "--replicas=2"])?;
    space.rolled_out("web")?;
    contains(&space.kubectl(&["expose", "deployment", "web", "--port=80"])?, &["service/web exposed"])?;
    contains(&space.kubectl(&["scale", "deployment", "web", "--replicas=4"])?, &["deployment.apps/web scaled"])?;
    space.rolled_out("web")?;
    let text = space.kubectl(&["get", "deployment", "web"])?;
    contains(&text, &["UP-TO-DATE", "AVAILABLE", "4/4"])?;
    space.endpoints("web", 4)?;
    let to = (space.cluster_ip("web")?, 80).into();
    let from = keelson_tests::net::From::Process(lab.pid("node-1")?);
    let body = lab.wait("nginx answers", 20, || Ok(Some(keelson_tests::net::get(from, to, "/")?)))?;
    ensure!(body.0 == 200 && body.1.contains("nginx"), "{body:?}");
    space.kubectl(&["scale", "deployment", "web", "--replicas=1"])?;
    space.endpoints("web", 1)
}

fn rollout(lab: &Lab) -> Result<()> {
    let space = lab.space("rollout")?;
    space.kubectl(&["create", "deployment", "web", "--image=nginx:1.14.2", "--replicas=2"])?;
    space.rolled_out("web")?;
    let image =
        || space.kubectl(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"]);
    contains(&space.kubectl(&["set", "image", "deployment/web", "nginx=nginx:1.25"])?, &["image updated"])?;
    contains(
        &space.kubectl(&["rollout", "status", "deployment/web", &lab.timeout(90)])?,
        &["successfully rolled out"],
    )?;
    ensure!(image()? == "nginx:1.25");
    contains(&space.kubectl(&["rollout", "history", "deployment/web"])?, &["REVISION", "1", "2"])?;
    contains(&space.kubectl(&["rollout", "undo", "deployment/web"])?, &["rolled back"])?;
    space.rolled_out("web")?;
    ensure!(image()? == "nginx:1.14.2");
    let names = |label: &str| -> Result<Vec<String>> {
        let pods = space.pods(label)?;
        Ok(pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(ToOwned::to_owned)).collect())
    };
    let before = names("app=web")?;
    contains(&space.kubectl(&["rollout", "restart", "deployment/web"])?, &["restarted"])?;
    space.rolled_out("web")?;
    lab.until("only new pods are left", 60, || {
        let now = names("app=web")?;
        Ok(now.len() == 2 && now.iter().all(|name| !before.contains(name)))
    })?;
    let sets = space.json(&["get", "replicasets"])?;
    let sets = sets["items"].as_array().context("no replica sets")?.len();
    ensure!(sets == 3, "{sets} replica sets instead of 3");
    Ok(())
}

fn describe(lab: &Lab) -> Result<()> {
    let pods = lab.json(&["get", "pods", "-l", "app=hello"])?;
    let pod = pods["items"][0]["metadata"]["name"].as_str().context("no pod")?;
    let text = lab.kubectl(&["describe", "pod", pod])?;
    contains(
        &text,
        &[
            "Node:",
            "node-1/",
            "Containers:",
            "Container ID:",
            "containerd://",
            "State:",
            "Running",
            "Conditions:",
            "Events:",
            "Started",
            "Controlled By:",
            "ReplicaSet/hello-",
        ],
    )?;
    let text = lab.kubectl(&["describe", "node", "node-1"])?;
    contains(
        &text,
        &[
            "Capacity:",
            "Allocatable:",
            "System Info:",
            "Non-terminated Pods:",
            "Allocated resources:",
            "hello-",
            "KubeletReady",
        ],
    )?;
    let text = lab.kubectl(&["describe", "service", "hello"])?;
    contains(&text, &["Selector:", "app=hello", "NodePort:", "30080/TCP", "Endpoints:", ":8080"])
}

fn logs(lab: &Lab) -> Result<()> {
    let space = lab.space("logs")?;
    space.apply(&manifests::shell(
        "talk",
        "Always",
        "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.2; done",
    ))?;
    space.ready_pod("talk")?;
    let mut child = lab.kubectl_spawn(&["-n", "logs", "logs", "-f", "talk"])?;
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    let first: Vec<String> = lines.take(12).collect::<Result<_, _>>()?;
    let _ = child.kill();
    child.wait()?;
    ensure!(first[0] == "line 1" && first[11] == "line 12", "{first:?}");
    let tail = space.kubectl(&["logs", "talk", "--tail=2"])?;
    ensure!(tail.lines().count() == 2, "{tail:?}");
    let stamped = space.kubectl(&["logs", "talk", "--tail=1", "--timestamps"])?;
    ensure!(stamped.contains("Z line ") || stamped.contains(" line "), "{stamped:?}");
    ensure!(stamped.starts_with("20"), "{stamped:?}");
    space.apply(&manifests::shell("again", "Always", "echo first life; sleep 1; exit 3"))?;
    lab.until("the container restarts", 60, || {
        let pod = space.json(&["get", "pod", "again"])?;
        Ok(pod["status"]["containerStatuses"][0]["restartCount"].as_i64() >= Some(1))
    })?;
    let previous =
        lab.wait("the earlier log is there", 20, || space.kubectl(&["logs", "again", "--previous"]).map(Some))?;
    ensure!(previous == "first life\n", "{previous:?}");
    Ok(())
}

const PUBLIC: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
  labels:
    app: nginx
spec:
  replicas: 3
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:1.14.2
        ports:
        - containerPort: 80
---
apiVersion: v1
kind: Service
metadata:
  name: nginx-service
spec:
  selector:
    app: nginx
  ports:
  - protocol: TCP
    port: 80
    targetPort: 80
";

fn public_manifests(lab: &Lab) -> Result<()> {
    let space = lab.space("public")?;
    contains(&space.apply(PUBLIC)?, &["deployment.apps/nginx-deployment created", "service/nginx-service created"])?;
    space.rolled_out("nginx-deployment")?;
    contains(
        &space.apply(PUBLIC)?,
        &["deployment.apps/nginx-deployment unchanged", "service/nginx-service unchanged"],
    )?;
    space.kubectl_with(&["diff", "-f", "-"], PUBLIC).context("diff without a difference")?;
    let changed = PUBLIC.replace("replicas: 3", "replicas: 2");
    let difference = space.kubectl_fails(&["diff", "-f", "-"], Some(&changed))?;
    contains(&difference, &["-  replicas: 3", "+  replicas: 2"])?;
    contains(&space.apply(&changed)?, &["deployment.apps/nginx-deployment configured"])?;
    space.endpoints("nginx-service", 2)?;
    let text = space.kubectl_with(&["delete", "-f", "-", "--timeout=60s"], PUBLIC)?;
    contains(&text, &["\"nginx-deployment\" deleted", "\"nginx-service\" deleted"])?;
    lab.until("the pods are gone too", 60, || Ok(space.pods("app=nginx")?.is_empty()))
}

fn events(lab: &Lab) -> Result<()> {
    let space = lab.space("events")?;
    space.apply(&manifests::shell("short", "Never", "true"))?;
    space.output("short")?;
    lab.until("the events of a pod's life", 20, || {
        let text = space.kubectl(&["get", "events"])?;
        Ok(["LAST SEEN", "Scheduled", "Pulled", "Created", "Started", "pod/short"]
            .iter()
            .all(|part| text.contains(part)))
    })
}

fn explain(lab: &Lab) -> Result<()> {
    let text = lab.kubectl(&["explain", "pod.spec.containers"])?;
    contains(
        &text,
        &["KIND:", "Pod", "FIELD: containers", "<[]Container>", "image", "imagePullPolicy", "DESCRIPTION:"],
    )?;
    let text = lab.kubectl(&["explain", "deployment.spec.strategy"])?;
    contains(&text, &["apps", "rollingUpdate", "Recreate"])
}

fn outputs(lab: &Lab) -> Result<()> {
    let service = lab.json(&["get", "service", "hello"])?;
    ensure!(service["apiVersion"] == "v1" && service["spec"]["ports"][0]["nodePort"] == 30080, "{service}");
    contains(&lab.kubectl(&["get", "service", "hello", "-o", "yaml"])?, &["kind: Service", "nodePort: 30080"])?;
    contains(&lab.kubectl(&["get", "service", "hello", "-o", "wide"])?, &["SELECTOR", "app=hello"])?;
    let path = "jsonpath={.items[*].metadata.labels.app}";
    let text = lab.kubectl(&["get", "pods", "-l", "app=hello", "-o", path])?;
    ensure!(text == "hello hello hello", "{text:?}");
    let text = lab.kubectl(&["get", "deployment", "hello", "-o", "name"])?;
    ensure!(text == "deployment.apps/hello\n", "{text:?}");
    let columns = "custom-columns=N:.metadata.name,R:.spec.replicas";
    let text = lab.kubectl(&["get", "deployment", "hello", "-o", columns])?;
    ensure!(text.lines().nth(1).is_some_and(|line| line.split_whitespace().eq(["hello", "3"])), "{text:?}");
    let text = lab.kubectl(&[
        "get",
        "pods",
        "-l",
        "app in (hello)",
        "--field-selector",
        "status.phase=Running",
        "--no-headers",
    ])?;
    ensure!(text.lines().count() == 3, "{text:?}");
    let missing = lab.kubectl_fails(&["get", "pod", "no-such-pod"], None)?;
    contains(&missing, &["Error from server (NotFound): pods \"no-such-pod\" not found"])
}

fn waits(lab: &Lab) -> Result<()> {
    let space = lab.space("waits")?;
    space.apply(&manifests::shell("one", "Always", "sleep 1000"))?;
    let text = space.kubectl(&["wait", "--for=condition=Ready", "pod/one", "--timeout=60s"])?;
    contains(&text, &["pod/one condition met"])?;
    space.kubectl(&["wait", "--for=jsonpath={.status.phase}=Running", "pod/one", "--timeout=10s"])?;
    let mut waiting = lab.kubectl_spawn(&["-n", "waits", "wait", "--for=delete", "pod/one", "--timeout=60s"])?;
    contains(&space.kubectl(&["delete", "pod", "one"])?, &["pod \"one\" deleted"])?;
    ensure!(waiting.wait()?.success());
    let late = space.kubectl_fails(&["wait", "--for=condition=Ready", "pod/one", "--timeout=1s"], None)?;
    contains(&late, &["NotFound"])
}

fn watch(lab: &Lab) -> Result<()> {
    let space = lab.space("watching")?;
    let mut child = lab.kubectl_spawn(&["-n", "watching", "get", "pods", "--watch", "-o", "name"])?;
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    space.apply(&manifests::shell("seen", "Never", "true"))?;
    let first: Vec<String> = lines.take(3).collect::<Result<_, _>>()?;
    let _ = child.kill();
    child.wait()?;
    ensure!(first.iter().all(|line| line == "pod/seen"), "{first:?}");
    Ok(())
}

fn patches(lab: &Lab) -> Result<()> {
    let space = lab.space("patches")?;
    space.kubectl(&["create", "configmap", "settings", "--from-literal=colour=blue"])?;
    space.kubectl(&["label", "configmap", "settings", "tier=front"])?;
    space.kubectl(&["annotate", "configmap", "settings", "note=one"])?;
    space.kubectl(&["patch", "configmap", "settings", "--type=merge", "-p", r#"{"data":{"colour":"red"}}"#])?;
    let path = r#"[{"op":"add","path":"/data/size","value":"big"}]"#;
    space.kubectl(&["patch", "configmap", "settings", "--type=json", "-p", path])?;
    space.kubectl(&["patch", "configmap", "settings", "-p", r#"{"data":{"shape":"round"}}"#])?;
    let object = space.json(&["get", "configmap", "settings"])?;
    ensure!(object["data"] == serde_json::json!({"colour": "red", "size": "big", "shape": "round"}), "{object}");
    ensure!(object["metadata"]["labels"]["tier"] == "front" && object["metadata"]["annotations"]["note"] == "one");
    let refused = space.kubectl_fails(&["label", "configmap", "settings", "tier=back"], None)?;
    contains(&refused, &["already has a value (front)"])
}

fn namespace_deletion(lab: &Lab) -> Result<()> {
    let space = lab.space("doomed")?;
    space.apply(&manifests::servers("web", 2, &[]))?;
    space.rolled_out("web")?;
    lab.kubectl(&["delete", "namespace", "doomed", &lab.timeout(90)])?;
    let gone = lab.kubectl_fails(&["get", "namespace", "doomed"], None)?;
    contains(&gone, &["NotFound"])?;
    let pods = lab.kubectl(&["get", "pods", "-A"])?;
    ensure!(!pods.contains("doomed"), "{pods}");
    Ok(())
}

const FEATURES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  colour: blue
  file.txt: from the config map
---
apiVersion: v1
kind: Secret
metadata:
  name: hidden
stringData:
  word: sesame
---
apiVersion: v1
kind: Pod
metadata:
  name: features
  labels:
    tier: test
spec:
  restartPolicy: Never
  volumes:
    - name: shared
      emptyDir: {}
    - name: settings
      configMap:
        name: settings
    - name: hidden
      secret:
        secretName: hidden
  initContainers:
    - name: first
      image: busybox:1.28
      command: ["sh", "-c", "echo one >> /shared/order"]
      volumeMounts:
        - name: shared
          mountPath: /shared
    - name: second
      image: busybox:1.28
      command: ["sh", "-c", "echo two >> /shared/order"]
      volumeMounts:
        - name: shared
          mountPath: /shared
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c"]
      args:
        - |
          echo order $(cat /shared/order | tr '\n' ' ')
          echo file $(cat /settings/file.txt)
          echo secret $(cat /hidden/word)
          echo env $colour $WORD $NODE $(GREETING)
          echo token $(wc -c < /var/run/secrets/kubernetes.io/serviceaccount/token)
          echo namespace $(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace)
          echo ca $(head -n 1 /var/run/secrets/kubernetes.io/serviceaccount/ca.crt)
          echo service $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
          echo hosts $(grep -c features /etc/hosts)
          echo resolv $(grep -c cluster.local /etc/resolv.conf)
      env:
        - name: GREETING
          value: hi
        - name: WORD
          valueFrom:
            secretKeyRef:
              name: hidden
              key: word
        - name: NODE
          valueFrom:
            fieldRef:
              fieldPath: spec.nodeName
      envFrom:
        - configMapRef:
            name: settings
      volumeMounts:
        - name: shared
          mountPath: /shared
        - name: settings
          mountPath: /settings
        - name: hidden
          mountPath: /hidden
"#;

fn pod_features(lab: &Lab) -> Result<()> {
    let space = lab.space("features")?;
    space.apply(FEATURES)?;
    let text = space.output("features")?;
    contains(
        &text,
        &[
            "order one two",
            "file from the config map",
            "secret sesame",
            "env blue sesame node-1 hi",
            "namespace features",
            "ca -----BEGIN CERTIFICATE-----",
            "service 10.96.0.1:443",
            "hosts 1",
        ],
    )?;
    let token =
        text.lines().find_map(|line| line.strip_prefix("token ")).and_then(|size| size.trim().parse::<u32>().ok());
    ensure!(token > Some(100), "the token is too short: {text}");
    Ok(())
}

fn api_from_a_pod(lab: &Lab) -> Result<()> {
    let space = lab.space("inside")?;
    space.apply(&manifests::shell("caller", "Always", "sleep 1000"))?;
    space.ready_pod("caller")?;
    let pid = space.pod_pid("caller")?;
    // The real kubectl with the pod's network: TLS with the CA, the certificate's names, and the whole way there and back.
    let kubeconfig = lab.folder()?.join("kubeconfig");
    let namespace = format!("--net=/proc/{pid}/ns/net");
    let program = lab.kubectl_program()?;
    let mut command = std::process::Command::new("nsenter");
    command.args([&namespace, "--"]).arg(program).arg("--kubeconfig").arg(kubeconfig);
    command.args(["--server=https://10.96.0.1:443", "--request-timeout=10s", "get", "--raw", "/version"]);
    let text = keelson_tests::lab::run(&mut command, None)?;
    contains(&text, &["gitVersion"])
}

fn lists(lab: &Lab) -> Result<()> {
    let space = lab.space("lists")?;
    let list = |field: &str| {
        format!(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {{name: one}}\n  {field}: \
             {{a: b}}\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {{name: two}}\n"
        )
    };
    // kubectl validates a List by itself, from OpenAPI v2: nothing is created when it finds a mistake.
    let said = space.kubectl_fails(&["apply", "-f", "-"], Some(&list("dada")))?;
    ensure!(said.contains("unknown field \"dada\" in io.k8s.api.core.v1.ConfigMap"), "{said}");
    ensure!(space.kubectl(&["get", "configmaps", "-o", "name"])?.trim() == "configmap/kube-root-ca.crt");
    space.apply(&list("data"))?;
    ensure!(space.kubectl(&["get", "configmap", "one", "-o", "jsonpath={.data.a}"])? == "b");
    space.kubectl(&["get", "configmap", "two"]).map(drop)
}
