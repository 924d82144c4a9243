import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What a Java producer with a transactional id gets: see franz/main.go. */
public final class Transactional {
    public static void main(String[] args) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("transactional.id", "transactional-java");
        config.put("max.block.ms", "25000");
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        long began = System.nanoTime();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config);
        try {
            producer.initTransactions();
            System.out.println("accepted");
        } catch (TimeoutException error) {
            System.out.println("hangs");
        } catch (RuntimeException error) {
            System.out.println("refused " + (System.nanoTime() - began) / 1_000_000 + " " + error);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
