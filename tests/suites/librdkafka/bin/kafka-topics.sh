#!/usr/bin/env bash
# What librdkafka's tests call at $KAFKA_PATH/bin: Kafka's tool of that name.
name=$(basename -- "$0" .sh)
exec "$KAFKA_PEER" tool "${name#kafka-}" "$@"
