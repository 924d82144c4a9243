import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The calls of Kafka's Admin client, by the names that the script gives them. */
final class Administration {
    private interface Call {
        Object make(Admin admin, JsonNode command) throws Exception;
    }

    static final Map<String, Call> CALLS = new TreeMap<>();

    static {
        CALLS.put("create_topic", (admin, c) -> {
            Map<String, String> config = new HashMap<>();
            c.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
            NewTopic topic = new NewTopic(topic(c), c.get("partitions").asInt(), (short) 1).configs(config);
            return get(admin.createTopics(List.of(topic)).all());
        });
        CALLS.put("delete_topic", (admin, c) -> get(admin.deleteTopics(List.of(topic(c))).all()));
        CALLS.put("list_topics", (admin, c) -> get(admin.listTopics().names()));
        CALLS.put("describe_topic", (admin, c) ->
            get(admin.describeTopics(List.of(topic(c))).allTopicNames()).get(topic(c)).partitions().size());
        CALLS.put("create_partitions", (admin, c) ->
            get(admin.createPartitions(Map.of(topic(c), NewPartitions.increaseTo(c.get("partitions").asInt()))).all()));
        CALLS.put("get_config", (admin, c) ->
            get(admin.describeConfigs(List.of(resource(c))).all()).get(resource(c)).get(c.get("name").asText()).value());
        CALLS.put("set_config", (admin, c) -> {
            ConfigEntry entry = new ConfigEntry(c.get("name").asText(), c.get("value").asText());
            return get(admin.incrementalAlterConfigs(Map.of(resource(c), List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all());
        });
        CALLS.put("list_offsets", (admin, c) -> List.of(
            get(admin.listOffsets(Map.of(partition(c), OffsetSpec.earliest())).partitionResult(partition(c))).offset(),
            get(admin.listOffsets(Map.of(partition(c), OffsetSpec.latest())).partitionResult(partition(c))).offset()));
        CALLS.put("delete_records", (admin, c) ->
            get(admin.deleteRecords(Map.of(partition(c), RecordsToDelete.beforeOffset(c.get("before").asLong())))
                .lowWatermarks().get(partition(c))).lowWatermark());
        CALLS.put("describe_cluster", (admin, c) -> get(admin.describeCluster().nodes()).size());
        CALLS.put("describe_log_dirs", (admin, c) -> {
            int node = get(admin.describeCluster().nodes()).iterator().next().id();
            return get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node).values().stream()
                .flatMap(dir -> dir.replicaInfos().keySet().stream()).filter(at -> at.topic().equals(topic(c))).count();
        });
        CALLS.put("describe_producers", (admin, c) ->
            get(admin.describeProducers(List.of(partition(c))).partitionResult(partition(c))).activeProducers().size());
        CALLS.put("elect_leader", (admin, c) -> {
            Optional<Throwable> error = get(admin.electLeaders(ElectionType.PREFERRED, Set.of(partition(c))).partitions()).get(partition(c));
            return error.map(Throwable::toString).orElse("done");
        });
        CALLS.put("list_groups", (admin, c) ->
            get(admin.listGroups(new ListGroupsOptions()).all()).stream().map(group -> group.groupId()).toList());
        CALLS.put("describe_group", (admin, c) -> {
            var found = get(admin.describeConsumerGroups(List.of(group(c))).all()).get(group(c));
            return List.of(found.groupState().toString(), found.members().size());
        });
        CALLS.put("group_offsets", (admin, c) -> {
            Map<String, Long> offsets = new TreeMap<>();
            get(admin.listConsumerGroupOffsets(group(c)).partitionsToOffsetAndMetadata()).forEach((at, offset) -> {
                if (at.topic().equals(topic(c))) {
                    offsets.put(String.valueOf(at.partition()), offset.offset());
                }
            });
            return offsets;
        });
        CALLS.put("set_group_offset", (admin, c) ->
            get(admin.alterConsumerGroupOffsets(group(c), Map.of(partition(c), new OffsetAndMetadata(c.get("offset").asLong()))).all()));
        CALLS.put("delete_group_offset", (admin, c) -> get(admin.deleteConsumerGroupOffsets(group(c), Set.of(partition(c))).all()));
        CALLS.put("delete_group", (admin, c) -> get(admin.deleteConsumerGroups(List.of(group(c))).all()));
    }

    static JsonNode call(String bootstrap, JsonNode command) throws Exception {
        Call call = CALLS.get(command.get("call").asText());
        if (call == null) {
            throw new UnsupportedOperationException();
        }
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(config)) {
            return Driver.JSON.valueToTree(call.make(admin, command));
        }
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(Driver.LIMIT.toSeconds(), TimeUnit.SECONDS);
    }

    private static String topic(JsonNode command) {
        return command.get("topic").asText();
    }

    private static String group(JsonNode command) {
        return command.get("group").asText();
    }

    private static TopicPartition partition(JsonNode command) {
        return new TopicPartition(topic(command), command.get("partition").asInt());
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic(command));
    }

    private Administration() { }
}
