#!/bin/sh
# A redis that follows the leader's Service: by its DNS name, or by the address that the Service's variables tell.
set -e

if [ "${GET_HOSTS_FROM:-dns}" = env ]; then
    leader=${REDIS_MASTER_SERVICE_HOST:-${REDIS_LEADER_SERVICE_HOST:-}}
    port=${REDIS_MASTER_SERVICE_PORT:-${REDIS_LEADER_SERVICE_PORT:-6379}}
    if [ -z "$leader" ]; then
        echo "GET_HOSTS_FROM is env, but neither REDIS_MASTER_SERVICE_HOST nor REDIS_LEADER_SERVICE_HOST is set:" \
            "was the leader's Service made after this pod, or is it in another namespace?" >&2
        exit 1
    fi
else
    leader=$REDIS_LEADER
    port=6379
fi
# A name that does not resolve yet is tried again every second by redis itself.
exec redis-server --protected-mode no --replicaof "$leader" "$port" "$@"
