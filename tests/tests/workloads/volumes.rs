//! Volumes that the node fills, and parts of volumes.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;

use super::contains;

const PROJECTED: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  colour: blue
  ignored: not asked for
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
  name: informed
  labels:
    tier: first
    app: informed
  annotations:
    note: "with \"quotes\""
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c"]
      args:
        - |
          cd /all
          for f in $(find -L . -type f | grep -v '/\.\.' | sort); do echo "$f $(stat -L -c %a $f) $(cat $f | head -c 60 | tr '\n' ' ')"; done
          echo "aud $(cut -d. -f2 token | tr '_-' '/+' | base64 -d 2>/dev/null | grep -o '"aud":\["[a-z]*"')"
          while true; do sleep 0.2; cat /info/labels > /tmp/now; cmp -s /tmp/now /tmp/last || { cp /tmp/now /tmp/last; echo "labels $(cat /info/labels | tr '\n' ' ')"; }; done
      resources:
        limits:
          cpu: 500m
          memory: 64Mi
      volumeMounts:
        - name: all
          mountPath: /all
          readOnly: true
        - name: info
          mountPath: /info
  volumes:
    - name: info
      downwardAPI:
        items:
          - path: labels
            fieldRef:
              fieldPath: metadata.labels
    - name: all
      projected:
        defaultMode: 0440
        sources:
          - configMap:
              name: settings
              items:
                - key: colour
                  path: deep/colour
                  mode: 0400
          - configMap:
              name: not-there
              optional: true
          - secret:
              name: hidden
          - downwardAPI:
              items:
                - path: name
                  fieldRef:
                    fieldPath: metadata.name
                - path: note
                  fieldRef:
                    fieldPath: metadata.annotations['note']
                - path: cpu
                  resourceFieldRef:
                    containerName: main
                    resource: limits.cpu
                    divisor: 1m
                - path: memory
                  resourceFieldRef:
                    containerName: main
                    resource: limits.memory
          - serviceAccountToken:
              path: token
              audience: vault
              expirationSeconds: 600
"#;

pub fn projected(lab: &Lab) -> Result<()> {
    let space = lab.space("projected")?;
    space.apply(PROJECTED)?;
    space.ready_pod("informed")?;
    let log = || space.kubectl(&["logs", "informed"]);
    lab.until("it has looked around", 15, || Ok(log()?.contains("labels ")))?;
    let text = log()?;
    contains(
        &text,
        &[
            "./deep/colour 400 blue",
            "./word 440 sesame",
            "./name 440 informed",
            "./note 440 with \"quotes\"",
            "./cpu 440 500",
            "./memory 440 67108864",
            "./token 440 ey",
            "aud \"aud\":[\"vault\"",
            "labels app=\"informed\" tier=\"first\"",
        ],
    )?;
    ensure!(!text.contains("ignored"), "{text}");
    let begun = std::time::Instant::now();
    space.kubectl(&["label", "pod", "informed", "tier=second", "--overwrite"])?;
    lab.until("the change shows in the file", 30, || Ok(log()?.contains("labels app=\"informed\" tier=\"second\"")))?;
    println!("    a label's change shows after {:.1?}", begun.elapsed());
    Ok(())
}

const SUB_PATHS: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: files
data:
  one.conf: first
  two.conf: second
---
apiVersion: v1
kind: Pod
metadata:
  name: parts
spec:
  restartPolicy: Never
  volumes:
    - name: files
      configMap:
        name: files
    - name: work
      emptyDir: {}
    - name: disk
      hostPath:
        path: /tmp/sub-paths
        type: DirectoryOrCreate
  initContainers:
    - name: prepare
      image: busybox:1.28
      command: ["sh", "-c", "mkdir -p /work/a/b; echo inside > /work/a/b/file; ln -s /etc /work/trap"]
      volumeMounts:
        - name: work
          mountPath: /work
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c"]
      args:
        - |
          echo "conf $(cat /etc/app/app.conf) $(ls /etc/app | tr '\n' ' ')"
          echo "folder $(cat /part/file)"
          echo mine > /own/file; echo "own $(ls /own | tr '\n' ' ')"
          echo "link $(ls /escaped | grep -c passwd)"
      env:
        - name: POD
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
      volumeMounts:
        - name: files
          mountPath: /etc/app/app.conf
          subPath: one.conf
        - name: work
          mountPath: /part
          subPath: a/b
        - name: disk
          mountPath: /own
          subPathExpr: $(POD)/data
        - name: work
          mountPath: /made
          subPath: made/on/demand
"#;

pub fn sub_paths(lab: &Lab) -> Result<()> {
    let space = lab.space("sub-paths")?;
    space.apply(SUB_PATHS)?;
    contains(&space.output("parts")?, &["conf first app.conf", "folder inside", "own file"])?;
    let made = lab.folder()?.join("node-1/tmp/sub-paths/parts/data/file");
    ensure!(std::fs::read_to_string(&made).with_context(|| made.display().to_string())? == "mine\n");
    // A link that a container left in the volume leads nobody out of it.
    let trapped = SUB_PATHS.replace("name: parts", "name: trapped").replace("subPath: made/on/demand", "subPath: trap");
    space.apply(&trapped.replace("mountPath: /made", "mountPath: /escaped"))?;
    let outcome = lab.wait("the trap is seen", 60, || {
        let pod = space.json(&["get", "pod", "trapped"])?;
        let waiting = super::status(&pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default().to_owned();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default().to_owned();
        Ok((waiting == "CreateContainerConfigError" || phase == "Succeeded").then_some(phase))
    })?;
    if outcome == "Succeeded" {
        // Followed inside of the volume only: the node's /etc was not shown.
        contains(&space.kubectl(&["logs", "trapped"])?, &["link 0"])?;
    }
    space.kubectl(&["delete", "pod", "parts", "trapped", "--timeout=60s"])?;
    lab.until("no part stays mounted", 30, || {
        Ok(!lab.node("node-1", &["cat", "/proc/self/mountinfo"])?.contains("volume-subpaths"))
    })
}

const OWNED: &str = r#"apiVersion: v1
kind: Secret
metadata:
  name: key
stringData:
  key: secret
---
apiVersion: v1
kind: Pod
metadata:
  name: owned
spec:
  restartPolicy: Never
  securityContext:
    runAsUser: 1234
    runAsGroup: 1234
    fsGroup: 5678
  volumes:
    - name: key
      secret:
        secretName: key
        defaultMode: 0400
    - name: memory
      emptyDir:
        medium: Memory
        sizeLimit: 8Mi
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c"]
      args:
        - |
          stat -L -c 'key %a %u %g' /key/key
          cat /key/key
          df -k /memory | tail -n 1
          mount | grep ' on /memory '
          head -c 9000000 /dev/zero > /memory/big || echo full
      volumeMounts:
        - name: key
          mountPath: /key
        - name: memory
          mountPath: /memory
"#;

pub fn owners(lab: &Lab) -> Result<()> {
    let space = lab.space("owners")?;
    space.apply(OWNED)?;
    let text = space.output("owned")?;
    // fsGroup adds the group's right to read, or the file would be of no use to a user other than root.
    contains(&text, &["key 440 0 5678", "secret", "tmpfs", " 8192 ", "full"])
}
