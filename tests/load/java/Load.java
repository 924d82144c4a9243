import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The same two programs as {@code tests/load/librdkafka/load.c}, on Kafka's Java client: arguments, records and
 * lines of output are described there.
 */
public final class Load {
    private static final PrintStream OUT =
        new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.US_ASCII);
    private static volatile boolean stop;
    private static long acked;
    private static long failed;

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce" -> produce(args);
            case "read" -> read(args[1], args[2], Integer.parseInt(args[3]));
            default -> throw new IllegalArgumentException(args[0]);
        }
        OUT.flush();
        System.exit(0);
    }

    /** A record's value: a header that names it, and bytes that follow from it. */
    private static byte[] value(long producer, long partition, long sequence, int length) {
        byte[] header = (producer + " " + partition + " " + sequence + " " + length + " ")
            .getBytes(StandardCharsets.US_ASCII);
        byte[] value = Arrays.copyOf(header, header.length + length);
        long x = (producer + 1) * 0x9e3779b97f4a7c15L ^ (partition + 1) * 0xc2b2ae3d27d4eb4fL
            ^ (sequence + 1) * 0x165667b19e3779f9L;
        for (int i = 0; i < length; i += 8) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
            for (int j = 0; j < 8 && i + j < length; j++) {
                value[header.length + i + j] = (byte) ('a' + (x >>> (8 * j) & 15));
            }
        }
        return value;
    }

    private static byte[] key(long producer, long partition) {
        return (producer + ":" + partition).getBytes(StandardCharsets.US_ASCII);
    }

    private static void produce(String[] args) throws Exception {
        String topic = args[2];
        int partitions = Integer.parseInt(args[3]);
        long producer = Long.parseLong(args[4]);
        double rate = Double.parseDouble(args[5]);
        int least = Integer.parseInt(args[6]);
        int most = Integer.parseInt(args[7]);
        long count = args.length > 9 ? Long.parseLong(args[9]) : Long.MAX_VALUE;
        Properties config = new Properties();
        config.put("bootstrap.servers", args[1]);
        config.put("enable.idempotence", "true");
        config.put("acks", "all");
        config.put("linger.ms", "5");
        config.put("compression.type", args[8]);
        config.put("delivery.timeout.ms", "300000");
        config.put("max.block.ms", "300000");
        config.put("request.timeout.ms", "10000");
        config.put("retry.backoff.ms", "50");
        config.put("retry.backoff.max.ms", "500");
        config.put("reconnect.backoff.ms", "50");
        config.put("reconnect.backoff.max.ms", "500");
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        Thread waiter = new Thread(Load::waitForEndOfInput);
        waiter.setDaemon(true);
        waiter.start();
        Thread flusher = new Thread(Load::flushNowAndThen);
        flusher.setDaemon(true);
        flusher.start();
        long sent = 0;
        try (KafkaProducer<byte[], byte[]> kafka = new KafkaProducer<>(config)) {
            long began = System.nanoTime();
            while (!stop && sent < count) {
                int partition = (int) (sent % partitions);
                long sequence = sent / partitions;
                int length = least + (int) ((sequence * 2654435761L + partition) % (most - least + 1));
                long before = System.nanoTime();
                kafka.send(new ProducerRecord<>(topic, partition, key(producer, partition),
                    value(producer, partition, sequence, length)), (metadata, error) -> {
                        synchronized (OUT) {
                            if (error == null) {
                                acked++;
                                OUT.println("A " + partition + " " + metadata.offset() + " " + sequence);
                            } else {
                                failed++;
                                OUT.println("F " + partition + " " + sequence + " " + error.getClass().getSimpleName());
                            }
                        }
                    });
                sent++;
                if (rate > 0) {
                    long now = System.nanoTime();
                    if (now - before > 50_000_000) {
                        began = now - (long) (sent / rate * 1e9); // what could not be sent is not made up for
                    }
                    long ahead = began + (long) (sent / rate * 1e9) - now;
                    if (ahead > 1_000_000) {
                        Thread.sleep(ahead / 1_000_000);
                    }
                }
            }
            kafka.flush();
        }
        synchronized (OUT) {
            OUT.println("done " + sent + " " + acked + " " + failed);
        }
    }

    private static void waitForEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                // Whatever it says: only its end counts.
            }
        } catch (java.io.IOException ended) {
            // As good as an end.
        }
        stop = true;
    }

    private static void flushNowAndThen() {
        try {
            while (true) {
                Thread.sleep(50);
                synchronized (OUT) {
                    OUT.flush();
                }
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void read(String bootstrap, String topic, int partitions) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "none");
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> kafka = new KafkaConsumer<>(config)) {
            List<TopicPartition> all = new ArrayList<>();
            for (int i = 0; i < partitions; i++) {
                all.add(new TopicPartition(topic, i));
            }
            Map<TopicPartition, Long> low = kafka.beginningOffsets(all);
            Map<TopicPartition, Long> high = kafka.endOffsets(all);
            Map<Integer, Long> left = new HashMap<>();
            for (TopicPartition one : all) {
                OUT.println("E " + one.partition() + " " + low.get(one) + " " + high.get(one));
                if (high.get(one) > low.get(one)) {
                    left.put(one.partition(), high.get(one));
                }
            }
            kafka.assign(all);
            all.forEach(one -> kafka.seek(one, low.get(one)));
            long last = System.nanoTime();
            while (!left.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> record : kafka.poll(Duration.ofSeconds(1))) {
                    last = System.nanoTime();
                    Long end = left.get(record.partition());
                    if (end == null || record.offset() >= end) {
                        continue;
                    }
                    check(record);
                    if (record.offset() == end - 1) {
                        left.remove(record.partition());
                    }
                }
                if (System.nanoTime() - last > 60_000_000_000L) {
                    throw new IllegalStateException("no record for 60 s");
                }
            }
        }
    }

    private static void check(ConsumerRecord<byte[], byte[]> record) {
        byte[] value = record.value();
        String where = record.partition() + " " + record.offset() + " ";
        String[] header = new String(value, 0, Math.min(value.length, 80), StandardCharsets.US_ASCII).split(" ", 5);
        try {
            long producer = Long.parseLong(header[0]);
            long partition = Long.parseLong(header[1]);
            long sequence = Long.parseLong(header[2]);
            if (partition != record.partition()) {
                OUT.println("BAD " + where + "in another partition");
            } else if (!Arrays.equals(value, value(producer, partition, sequence, Integer.parseInt(header[3])))) {
                OUT.println("BAD " + where + "other bytes");
            } else if (!Arrays.equals(record.key(), key(producer, partition))) {
                OUT.println("BAD " + where + "another key");
            } else {
                OUT.println("R " + where + producer + " " + sequence);
            }
        } catch (NumberFormatException | ArrayIndexOutOfBoundsException noNumber) {
            OUT.println("BAD " + where + "no header");
        }
    }
}
