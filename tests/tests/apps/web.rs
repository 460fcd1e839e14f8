//! nginx as a front end that finds a Python back end by the name of its Service.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::net::{self, From};
use serde_json::Value;

use super::{doors, nodes};

const BACK: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: program
data:
  app.py: |
    import http.server, json, os, socket

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = json.dumps({
                "pod": socket.gethostname(),
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "word": os.environ["WORD"],
            }).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
---
apiVersion: v1
kind: Service
metadata:
  name: backend
spec:
  selector:
    app: backend
  ports:
    - name: web
      port: 80
      targetPort: web
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: backend
spec:
  replicas: 2
  selector:
    matchLabels:
      app: backend
  template:
    metadata:
      labels:
        app: backend
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: python
          image: python:3.11-slim
          command: ["python3", "/app/app.py"]
          env:
            - name: WORD
              value: swordfish
          ports:
            - name: web
              containerPort: 8000
          readinessProbe:
            httpGet:
              path: /
              port: web
            periodSeconds: 1
          volumeMounts:
            - name: program
              mountPath: /app
      volumes:
        - name: program
          configMap:
            name: program
"#;

const FRONT: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: nginx
data:
  default.conf: |
    upstream app {
        server backend;
    }
    server {
        listen 80;
        location / {
            root /usr/share/nginx/html;
        }
        location /api/ {
            proxy_pass http://app/;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }
        # By a resolver and a variable the name is looked up again and again, not only at the start.
        location /late/ {
            resolver 10.96.0.10 valid=1s;
            set $late "late.FRONT.svc.cluster.local";
            proxy_pass http://$late/;
        }
    }
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  type: NodePort
  selector:
    app: web
  ports:
    - port: 80
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: nginx
          image: nginx:1.25
          ports:
            - containerPort: 80
          readinessProbe:
            httpGet:
              path: /
              port: 80
            periodSeconds: 1
          volumeMounts:
            - name: conf
              mountPath: /etc/nginx/conf.d/default.conf
              subPath: default.conf
      volumes:
        - name: conf
          configMap:
            name: nginx
"#;

pub fn front_and_back(lab: &Lab) -> Result<()> {
    // The scheduler weighs what nodes have: pods of other tests that are just ending would tip it.
    lab.until("what others left is gone", 60, || {
        let pods = lab.json(&["get", "pods", "-A"])?;
        Ok(pods["items"].as_array().is_some_and(|all| all.iter().all(|p| p["metadata"]["deletionTimestamp"].is_null())))
    })?;
    let space = lab.space("web")?;
    space.apply(BACK)?;
    space.apply(&FRONT.replace("FRONT", &space.name))?;
    space.rolled_out("backend")?;
    space.rolled_out("web")?;
    space.endpoints("web", 2)?;
    ensure!(nodes(&space.pods("app=backend")?).len() == 2, "the back ends are on one node");
    let doors = doors(lab, &space, "web")?;
    let mut backs = BTreeSet::new();
    for door in &doors {
        let page = lab.wait("nginx answers", 30, || net::get(From::Host, *door, "/").map(Some))?;
        ensure!(page.0 == 200 && page.1.contains("nginx"), "{page:?}");
        for _ in 0..20 {
            let (status, body) = net::get(From::Host, *door, "/api/some/where?x=1")?;
            ensure!(status == 200, "{status}: {body}");
            let report: Value = serde_json::from_str(&body)?;
            ensure!(report["path"] == "/some/where?x=1" && report["word"] == "swordfish", "{report}");
            ensure!(report["headers"]["x-forwarded-for"].is_string(), "{report}");
            backs.insert(report["pod"].as_str().context("no pod")?.to_owned());
        }
    }
    ensure!(backs.len() == 2, "only {backs:?} were asked");
    // A Service that comes later is found by its name as soon as it is there.
    let (status, _) = net::get(From::Host, doors[0], "/late/")?;
    ensure!(status == 502, "a name that does not exist gave {status}");
    let late = BACK.split("---\n").nth(1).context("no service")?.replace("name: backend", "name: late");
    space.apply(&late)?;
    lab.until("the later name resolves", 20, || Ok(net::get(From::Host, doors[0], "/late/")?.0 == 200))
}
