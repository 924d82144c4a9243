import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A consumer in a group, on a thread of its own: tells what it is assigned and given, and commits and leaves when asked to. */
final class Member implements ConsumerRebalanceListener {
    enum Wish { COMMIT, LEAVE }

    private record Asked(Wish wish, CompletableFuture<Void> done) { }

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final LinkedBlockingQueue<Asked> asked = new LinkedBlockingQueue<>();

    Member(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        this.consumer = consumer;
        consumer.subscribe(List.of(topic), this);
        Thread thread = new Thread(this::run, "member");
        thread.setDaemon(true);
        thread.start();
    }

    static Map<String, String> config(JsonNode command) {
        Map<String, String> config = new HashMap<>();
        config.put("session.timeout.ms", command.get("session_ms").asText());
        config.put("heartbeat.interval.ms", "500");
        if (command.hasNonNull("instance")) {
            config.put("group.instance.id", command.get("instance").asText());
        }
        return config;
    }

    void ask(Wish wish) throws Exception {
        Asked one = new Asked(wish, new CompletableFuture<>());
        asked.add(one);
        one.done.get(Driver.LIMIT.toSeconds(), TimeUnit.SECONDS);
    }

    private void run() {
        while (true) {
            for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(50))) {
                Driver.say(Driver.JSON.createObjectNode().set("got", Driver.JSON.createArrayNode().add(r.partition()).add(r.offset())));
            }
            Asked one = asked.poll();
            if (one == null) {
                continue;
            }
            try {
                if (one.wish == Wish.COMMIT) {
                    consumer.commitSync();
                } else {
                    consumer.close();
                }
                one.done.complete(null);
            } catch (RuntimeException e) {
                one.done.completeExceptionally(e);
            }
            if (one.wish == Wish.LEAVE) {
                return;
            }
        }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) { }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        List<Integer> all = consumer.assignment().stream().map(TopicPartition::partition).sorted().toList();
        Driver.say(Driver.JSON.createObjectNode().set("assigned", Driver.JSON.valueToTree(all)));
    }
}
