#!/bin/sh
# Turns a plain Debian 12 or 13 machine with systemd into a control plane or a node of Keelson. Doing it again changes nothing, but takes
# newer programs and restarts what runs them.
#
# Used by vagrant/Vagrantfile and by the guests of `lab vm`. The folder --from is what `lab vm bundle` makes:
#   bin/        agent, dataplane, control-plane, keelson-cni
#   images/     OCI archives that are imported into containerd
#   systemd/    units
#   config/     node.yaml and proxy.yaml with words between @ to fill in
set -eu

CLUSTER_CIDR=10.244.0.0/16
SERVICE_CIDR=10.96.0.0/16
CLUSTER_DNS=10.96.0.10
# What a node needs; a control plane needs nothing beside systemd.
PACKAGES="containerd runc nftables iproute2 iptables conntrack kmod ca-certificates"
DATA=/var/lib/keelson/control-plane

usage() {
    cat <<'END'
usage: provision.sh control-plane --from DIR --address IP [--options "FLAGS"]
       provision.sh credentials --to DIR --server URL NODE …     on the control plane: what nodes need to join, one folder for each
       provision.sh prepare --from DIR                               what a node needs no credentials for, so that it can be done early
       provision.sh node --from DIR --credentials DIR --name NAME --address IP
END
}

die() {
    echo "provision.sh: $*" >&2
    exit 1
}

from='' address='' options='' to='' server='' credentials='' name='' rest=''
role=${1:-}
[ $# -eq 0 ] || shift
while [ $# -gt 0 ]; do
    case $1 in
    --from | --address | --options | --to | --server | --credentials | --name)
        [ $# -ge 2 ] || die "$1 needs a value."
        word=${1#--}
        eval "$word=\$2"
        shift
        ;;
    -*) die "$role does not know '$1'." ;;
    *) rest="$rest $1" ;;
    esac
    shift
done

need() {
    for word in "$@"; do
        eval "[ -n \"\$$word\" ]" || die "$role needs --$word."
    done
}

need_systemd() {
    [ "$(id -u)" = 0 ] || die "this needs root."
    [ -d /run/systemd/system ] || die "systemd does not run here: this is for real and virtual machines."
}

# Packages that are missing. A machine without a network must have them already.
packages() {
    missing=
    for package in $PACKAGES; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "Installing$missing."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null || die "these packages are missing and apt cannot get them:$missing."
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $missing >/dev/null || die "apt could not install:$missing."
}

# install_file FROM TO MODE [link]: replaces a file also while it runs; says in $changed that something was new. With `link` both are one file
# where they can be: programs are large, nobody edits them, and whoever writes the folder anew replaces its files too.
install_file() {
    cmp -s "$1" "$2" && return 0
    mkdir -p "$(dirname "$2")"
    { [ "${4:-}" = link ] && ln -f "$1" "$2.new" 2>/dev/null; } || cp "$1" "$2.new"
    chmod "$3" "$2.new"
    mv "$2.new" "$2"
    changed=yes
}

# A file with this text.
write_file() {
    temporary=$(mktemp)
    cat >"$temporary"
    install_file "$temporary" "$1" "${2:-644}"
    rm -f "$temporary"
}

programs() {
    for program in "$@"; do
        [ -f "$from/bin/$program" ] || die "$from/bin/$program is missing: make the folder with 'lab vm bundle'."
        install_file "$from/bin/$program" "/opt/keelson/bin/$program" 755 link
    done
}

# Units of these services; they are started without waiting: a node may be there before its control plane.
services() {
    install_file "$from/systemd/keelson.slice" /etc/systemd/system/keelson.slice 644
    for service in "$@"; do
        install_file "$from/systemd/$service.service" "/etc/systemd/system/$service.service" 644
    done
    systemctl daemon-reload
    systemctl enable -q "$@"
    if [ "$changed" = yes ]; then
        systemctl restart --no-block "$@"
    else
        systemctl start --no-block "$@"
    fi
}

containerd_config() {
    # Version 2 is read by 1.6 (Debian 12) and 1.7 (Debian 13).
    write_file /etc/containerd/config.toml <<'END'
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
  max_conf_num = 1

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  # The agent's driver is cgroupfs: both must agree.
  SystemdCgroup = false
END
    if [ "$changed" = yes ]; then
        systemctl restart containerd
    else
        systemctl start containerd
    fi
}

# Images are imported once each, by the name of their archive, which carries a hash.
images() {
    mkdir -p /var/lib/keelson/images
    marks=
    for archive in "$from"/images/*; do
        [ -f "$archive" ] || continue
        mark=/var/lib/keelson/images/$(basename "$archive")
        [ -e "$mark" ] && continue
        { ctr -n k8s.io images import "$archive" >/dev/null && : >"$mark"; } &
        marks="$marks $mark"
    done
    wait
    for mark in $marks; do
        [ -e "$mark" ] || die "an image could not be imported: $(basename "$mark")"
    done
}

control_plane() {
    need from address
    need_systemd
    changed=no
    programs control-plane
    write_file /etc/keelson/control-plane.env <<END
# Written by provision.sh.
ADVERTISE_ADDRESS=$address
OPTIONS=--service-cluster-ip-range $SERVICE_CIDR --cluster-cidr $CLUSTER_CIDR --cluster-dns-ip $CLUSTER_DNS $options
END
    services keelson-control-plane
    waited=0
    until systemctl -q is-active keelson-control-plane; do
        systemctl -q is-failed keelson-control-plane && die "the control plane fails: journalctl -u keelson-control-plane"
        waited=$((waited + 1))
        [ $waited -lt 240 ] || die "the control plane is not ready after two minutes: journalctl -u keelson-control-plane"
        sleep 0.5
    done
    echo "The control plane is ready at https://$address:6443; its kubeconfig is $DATA/admin.kubeconfig."
}

credentials() {
    need to server
    umask 077
    for node in $rest; do
        mkdir -p "$to/$node"
        cp "$DATA/pki/ca.crt" "$to/$node/ca.crt"
        issue "$to/$node/kubelet.kubeconfig" "system:node:$node" system:nodes
        issue "$to/$node/dataplane.kubeconfig" system:kube-proxy system:node-proxier
    done
}

issue() {
    [ -e "$1" ] || /opt/keelson/bin/control-plane kubeconfig --data-dir "$DATA" --user "$2" --group "$3" --server "$server" --out "$1"
}

fill_in() {
    sed -e "s|@NAME@|$name|g" -e "s|@ADDRESS@|$address|g" -e "s|@CLUSTER_DNS@|$CLUSTER_DNS|g" -e "s|@CLUSTER_CIDR@|$CLUSTER_CIDR|g" \
        "$from/config/$1" | write_file "/etc/keelson/$1"
}

# What a node needs beside Keelson itself. `node` does it too, and finds it done: programs are not for here, because what runs them is
# restarted by the call that has replaced them.
prepare() {
    need from
    need_systemd
    packages
    changed=no
    write_file /etc/modules-load.d/keelson.conf <<'END'
# Before the first pod needs them. br_netfilter: packets between pods of one node pass the dataplane too.
overlay
br_netfilter
nf_conntrack
END
    for module in overlay br_netfilter nf_conntrack; do
        modprobe "$module" || echo "provision.sh: no module $module: it may be built in" >&2
    done
    write_file /etc/tmpfiles.d/keelson.conf <<'END'
# At boot. The runtime keeps what plugins have answered in files that it does not flush: after a power cut one may be empty, and then the
# network of its dead sandbox cannot be released any more ("unexpected end of JSON input"): its address would be held for ever. No
# sandbox outlives a boot, and a file that is not there is no error.
r! /var/lib/cni/results/*
END
    mkdir -p /opt/cni/bin /etc/cni/net.d /etc/kubernetes/manifests
    containerd_config
    images
}

node() {
    need from credentials name address
    prepare
    changed=no
    programs agent dataplane keelson-cni
    for plugin in loopback bridge host-local portmap; do
        ln -sfn /opt/keelson/bin/keelson-cni "/opt/cni/bin/$plugin"
    done
    for file in kubelet.kubeconfig dataplane.kubeconfig; do
        [ -f "$credentials/$file" ] || die "$credentials/$file is missing: 'provision.sh credentials' on the control plane makes it."
        install_file "$credentials/$file" "/etc/kubernetes/$file" 600
    done
    install_file "$credentials/ca.crt" /etc/kubernetes/pki/ca.crt 644
    fill_in node.yaml
    fill_in proxy.yaml
    services keelson-agent keelson-dataplane
    echo "The node $name is set up; 'kubectl get nodes' shows when it is Ready."
}

case $role in
control-plane) control_plane ;;
credentials) credentials ;;
prepare) prepare ;;
node) node ;;
help | -h | --help) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
