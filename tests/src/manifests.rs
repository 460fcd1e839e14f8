//! Manifests of the tests, written as people write them.

/// A deployment of the test server.
pub fn servers(name: &str, replicas: u32, arguments: &[&str]) -> String {
    let arguments = serde_json::to_string(arguments).unwrap_or_default();
    format!(
        r"apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: server
          image: keelson.dev/test-server:latest
          imagePullPolicy: IfNotPresent
          args: {arguments}
          ports:
            - name: http
              containerPort: 8080
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
"
    )
}

/// A service in front of [`servers`]; the node port is chosen by the cluster when `kind` is `NodePort`.
pub fn service(name: &str, app: &str, kind: &str) -> String {
    format!(
        r"apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  type: {kind}
  selector:
    app: {app}
  ports:
    - name: http
      port: 80
      targetPort: http
"
    )
}

/// A busybox pod that runs a shell script.
pub fn shell(name: &str, restart: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap_or_default();
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels:
    app: {name}
spec:
  restartPolicy: {restart}
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c", {script}]
"#
    )
}
