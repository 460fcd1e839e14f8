#!/bin/sh
# Becomes redis, or whatever else was asked for. Like upstream's image it takes connections from other hosts without a password.
set -e

case ${1:-} in
-* | *.conf) set -- redis-server "$@" ;;
esac
case "$*" in
"redis-server -"[hv]* | "redis-server --help" | "redis-server --version") ;;
redis-server*) set -- "$@" --protected-mode no ;;
esac
exec "$@"
