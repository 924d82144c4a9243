import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The driver of Kafka's Java client: its producer and consumer; Admin is in Administration, a group's member in Member. */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration LIMIT = Duration.ofSeconds(60);
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final String bootstrap;
    private Member member;

    private Driver(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws IOException {
        Driver driver = new Driver(args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = JSON.readTree(line);
            String verb = command.get("do").asText();
            ObjectNode answer = JSON.createObjectNode();
            try {
                driver.carryOut(verb, command, answer);
                answer.put("done", verb);
            } catch (UnsupportedOperationException e) {
                answer.put("error", "unsupported");
            } catch (Exception e) {
                answer.removeAll();
                answer.put("error", e.toString());
            }
            say(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static String version() throws IOException {
        Properties found = new Properties();
        try (InputStream file = KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            found.load(file);
        }
        return found.getProperty("version");
    }

    static synchronized void say(JsonNode line) {
        OUT.println(line);
        OUT.flush();
    }

    private void carryOut(String verb, JsonNode command, ObjectNode answer) throws Exception {
        switch (verb) {
            case "hello" -> {
                answer.put("version", version());
                answer.set("admin", JSON.valueToTree(Administration.CALLS.keySet()));
            }
            case "produce" -> answer.set("offsets", produce(command));
            case "read" -> read(command);
            case "replay" -> replay(command, answer);
            case "member" -> member = new Member(consumer(command.get("group").asText(), Member.config(command)), command.get("topic").asText());
            case "commit" -> member.ask(Member.Wish.COMMIT);
            case "leave" -> member.ask(Member.Wish.LEAVE);
            case "admin" -> answer.set("answer", Administration.call(bootstrap, command));
            default -> throw new IllegalArgumentException(verb);
        }
    }

    private JsonNode produce(JsonNode command) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("compression.type", command.get("codec").asText());
        config.put("linger.ms", "100");
        config.put("batch.size", "262144");
        ArrayNode offsets = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode r : command.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode pair : r.get("h")) {
                    headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1))));
                }
                sent.add(producer.send(new ProducerRecord<>(command.get("topic").asText(), command.get("partition").asInt(),
                    r.get("t").asLong(), bytes(r.get("k")), bytes(r.get("v")), headers)));
            }
            for (Future<RecordMetadata> one : sent) {
                offsets.add(one.get(LIMIT.toSeconds(), TimeUnit.SECONDS).offset());
            }
        }
        return offsets;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, String> more) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("group.protocol", "classic");
        if (group != null) {
            config.put("group.id", group);
        }
        config.putAll(more);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
        long end = System.nanoTime() + LIMIT.toNanos();
        while (taken.size() < count) {
            consumer.poll(Duration.ofMillis(200)).forEach(taken::add);
            if (System.nanoTime() > end) {
                throw new IllegalStateException(taken.size() + " of " + count + " records came");
            }
        }
        return taken.subList(0, count);
    }

    private void read(JsonNode command) {
        TopicPartition at = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, Map.of())) {
            consumer.assign(List.of(at));
            if (command.hasNonNull("time_ms")) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(at, command.get("time_ms").asLong())).get(at);
                consumer.seek(at, found.offset());
            } else {
                consumer.seek(at, command.get("offset").asLong());
            }
            for (ConsumerRecord<byte[], byte[]> r : take(consumer, command.get("count").asInt())) {
                say(JSON.createObjectNode().set("record", record(r)));
            }
        }
    }

    private static ObjectNode record(ConsumerRecord<byte[], byte[]> r) {
        ObjectNode out = JSON.createObjectNode();
        out.put("o", r.offset()).put("p", r.partition()).put("t", r.timestamp()).put("k", text(r.key())).put("v", text(r.value()));
        ArrayNode headers = out.putArray("h");
        for (Header header : r.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return out;
    }

    private void replay(JsonNode command, ObjectNode answer) {
        int count = command.get("count").asInt();
        String topic = command.get("topic").asText();
        Function<List<ConsumerRecord<byte[], byte[]>>, JsonNode> offsets =
            records -> JSON.valueToTree(records.stream().map(ConsumerRecord::offset).toList());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(command.get("group").asText(), Map.of())) {
            consumer.subscribe(List.of(topic));
            answer.set("first", offsets.apply(take(consumer, count)));
            consumer.commitSync();
            consumer.seekToBeginning(List.of(new TopicPartition(topic, 0)));
            answer.set("second", offsets.apply(take(consumer, count)));
        }
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
