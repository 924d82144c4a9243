/*
 * load: an idempotent producer and a verifying reader on librdkafka.
 *
 *   load produce BOOTSTRAP TOPIC PARTITIONS PRODUCER RATE MIN MAX CODEC [COUNT]
 *     Sends records round robin to partitions 0..PARTITIONS-1, RATE a second (0: as fast as it goes), with MIN to
 *     MAX bytes of padding, with acks=all and idempotence, until standard input ends or COUNT are sent; then
 *     waits until each is answered. Prints for every acknowledged record "A partition offset sequence", for every
 *     one given up "F partition sequence error", and at the end "done sent acked failed". With LOAD_BULK in the
 *     environment batches have at most 8 records and wait longer to be full.
 *   load read BOOTSTRAP TOPIC PARTITIONS
 *     Reads every partition from its start to the end it has now, without a group. Prints "R partition offset
 *     producer sequence" for each record whose key and value are what `produce` makes, "BAD partition offset
 *     reason" for any other, and "E partition low high" for each partition.
 *
 * A value is "producer partition sequence length " and `length` bytes that follow from the first three numbers;
 * the key is "producer:partition". Sequences count from 0 for each producer and partition. `tests/load/java`
 * makes and reads the same.
 */
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HEADER_MAX 80
#define VALUE_MAX (4 << 20)

static volatile int stop;
static uint64_t acked, failed;

static void die(const char *what, const char *why) {
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(2);
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[256];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        die(name, error);
}

/* Fills `length` bytes that follow from the three numbers. */
static void pad(char *at, size_t length, uint64_t producer, uint64_t partition, uint64_t sequence) {
    uint64_t x = (producer + 1) * 0x9e3779b97f4a7c15u ^ (partition + 1) * 0xc2b2ae3d27d4eb4fu ^
                 (sequence + 1) * 0x165667b19e3779f9u;
    for (size_t i = 0; i < length; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        for (size_t j = 0; j < 8 && i + j < length; j++)
            at[i + j] = 'a' + (char)(x >> (8 * j) & 15);
    }
}

static size_t value(char *at, uint64_t producer, uint64_t partition, uint64_t sequence, size_t length) {
    int header = snprintf(at, HEADER_MAX, "%llu %llu %llu %zu ", (unsigned long long)producer,
                          (unsigned long long)partition, (unsigned long long)sequence, length);
    pad(at + header, length, producer, partition, sequence);
    return (size_t)header + length;
}

/* --- produce ------------------------------------------------------------------------------------ */

static void delivered(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque) {
    (void)kafka, (void)opaque;
    unsigned long long sequence = (uintptr_t)message->_private;
    if (message->err) {
        failed++;
        printf("F %d %llu %s\n", message->partition, sequence, rd_kafka_err2name(message->err));
    } else {
        acked++;
        printf("A %d %lld %llu\n", message->partition, (long long)message->offset, sequence);
    }
}

static void *wait_for_end_of_input(void *unused) {
    char buffer[64];
    while (read(0, buffer, sizeof buffer) > 0)
        ;
    stop = 1;
    return unused;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int produce(char **args, uint64_t count) {
    const char *topic = args[1];
    uint64_t partitions = strtoull(args[2], NULL, 10), producer = strtoull(args[3], NULL, 10);
    double rate = atof(args[4]);
    size_t least = strtoul(args[5], NULL, 10), most = strtoul(args[6], NULL, 10);
    if (!partitions || least > most || most + HEADER_MAX > VALUE_MAX)
        die("produce", "numbers out of range");
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", args[0]);
    set(conf, "enable.idempotence", "true");
    set(conf, "acks", "all");
    set(conf, "linger.ms", "5");
    set(conf, "compression.codec", args[7]);
    set(conf, "message.timeout.ms", "300000");
    set(conf, "message.max.bytes", "8388608");
    set(conf, "retry.backoff.ms", "50");
    set(conf, "reconnect.backoff.ms", "50");
    set(conf, "reconnect.backoff.max.ms", "500");
    set(conf, "queue.buffering.max.messages", "20000");
    if (getenv("LOAD_BULK")) { /* batches of 8 KiB in many partitions, for filling a broker */
        set(conf, "linger.ms", "200");
        set(conf, "queue.buffering.max.messages", "200000");
        set(conf, "batch.num.messages", "8");
    }
    set(conf, "log_level", "2");
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    char error[256];
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!kafka)
        die("producer", error);
    rd_kafka_topic_t *handle = rd_kafka_topic_new(kafka, topic, NULL);
    pthread_t waiter;
    pthread_create(&waiter, NULL, wait_for_end_of_input, NULL);

    char *buffer = malloc(VALUE_MAX), key[48];
    double began = now(), flushed = began;
    uint64_t sent = 0, wild = 2654435761u;
    while (!stop && (!count || sent < count)) {
        uint64_t partition = sent % partitions, sequence = sent / partitions;
        size_t length = value(buffer, producer, partition, sequence,
                              least + (size_t)((sequence * wild + partition) % (most - least + 1)));
        int key_length = snprintf(key, sizeof key, "%llu:%llu", (unsigned long long)producer,
                                  (unsigned long long)partition);
        if (rd_kafka_produce(handle, (int32_t)partition, RD_KAFKA_MSG_F_COPY, buffer, length, key,
                             (size_t)key_length, (void *)(uintptr_t)sequence) == 0) {
            sent++;
        } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
            rd_kafka_poll(kafka, 5);
            if (rate > 0) /* what could not be sent in time is not made up for in a burst */
                began = now() - (double)sent / rate;
        } else if (rd_kafka_fatal_error(kafka, error, sizeof error)) {
            die("fatal", error);
        } else {
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        }
        rd_kafka_poll(kafka, 0);
        do {
            if (now() - flushed > 0.05) {
                fflush(stdout);
                flushed = now();
            }
        } while (rate > 0 && !stop && began + (double)sent / rate > now() && rd_kafka_poll(kafka, 1) >= 0);
    }
    rd_kafka_flush(kafka, 320000);
    printf("done %llu %llu %llu\n", (unsigned long long)sent, (unsigned long long)acked,
           (unsigned long long)failed);
    fflush(stdout);
    if (rd_kafka_fatal_error(kafka, error, sizeof error))
        die("fatal", error);
    _exit(0); /* nothing is left to wait for, and the waiter still reads */
}

/* --- read --------------------------------------------------------------------------------------- */

static void check(const rd_kafka_message_t *message, char *buffer) {
    unsigned long long producer, partition, sequence;
    size_t length;
    char header[HEADER_MAX + 1] = {0}, key[48];
    memcpy(header, message->payload, message->len < HEADER_MAX ? message->len : HEADER_MAX);
    const char *bad = NULL;
    if (sscanf(header, "%llu %llu %llu %zu ", &producer, &partition, &sequence, &length) != 4 ||
        length > VALUE_MAX - HEADER_MAX)
        bad = "no header";
    else if (partition != (unsigned long long)message->partition)
        bad = "in another partition";
    else if (value(buffer, producer, partition, sequence, length) != message->len ||
             memcmp(buffer, message->payload, message->len))
        bad = "other bytes";
    else if ((size_t)snprintf(key, sizeof key, "%llu:%llu", producer, partition) != message->key_len ||
             memcmp(key, message->key, message->key_len))
        bad = "another key";
    if (bad)
        printf("BAD %d %lld %s\n", message->partition, (long long)message->offset, bad);
    else
        printf("R %d %lld %llu %llu\n", message->partition, (long long)message->offset, producer, sequence);
}

static int read_all(char **args) {
    const char *topic = args[1];
    int partitions = atoi(args[2]), left = 0;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", args[0]);
    set(conf, "group.id", "unused"); /* asked for by the library; no group is joined */
    set(conf, "enable.auto.commit", "false");
    set(conf, "enable.partition.eof", "true");
    set(conf, "check.crcs", "true");
    set(conf, "auto.offset.reset", "error");
    set(conf, "log_level", "2");
    char error[256];
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
    if (!kafka)
        die("consumer", error);
    rd_kafka_poll_set_consumer(kafka);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    int64_t *ends = calloc((size_t)partitions, sizeof *ends);
    for (int i = 0; i < partitions; i++) {
        int64_t low, high;
        rd_kafka_resp_err_t failure;
        double began = now();
        /* A broker that has just restarted may not lead every partition yet. */
        while ((failure = rd_kafka_query_watermark_offsets(kafka, topic, i, &low, &high, 20000))) {
            if (now() - began > 30)
                die("offsets", rd_kafka_err2str(failure));
            usleep(100000);
        }
        printf("E %d %lld %lld\n", i, (long long)low, (long long)high);
        ends[i] = high;
        if (high > low) {
            rd_kafka_topic_partition_list_add(list, topic, i)->offset = low;
            left++;
        }
    }
    if (rd_kafka_assign(kafka, list))
        die("assign", "refused");
    char *buffer = malloc(VALUE_MAX + HEADER_MAX);
    double last = now();
    while (left) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(kafka, 1000);
        if (!message) {
            if (now() - last > 60)
                die("read", "no record for 60 s");
            continue;
        }
        if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
            if (message->offset < ends[message->partition])
                printf("BAD %d %lld end before the high watermark\n", message->partition,
                       (long long)message->offset);
        } else if (message->err) {
            die("read", rd_kafka_message_errstr(message));
        } else if (message->offset < ends[message->partition]) {
            last = now();
            check(message, buffer);
            if (message->offset == ends[message->partition] - 1)
                left--;
        }
        rd_kafka_message_destroy(message);
    }
    fflush(stdout);
    _exit(0);
}

int main(int count, char **args) {
    static char out[1 << 16];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if ((count == 10 || count == 11) && !strcmp(args[1], "produce"))
        return produce(args + 2, count == 11 ? strtoull(args[10], NULL, 10) : 0);
    if (count == 5 && !strcmp(args[1], "read"))
        return read_all(args + 2);
    die("usage", "see the head of load.c");
}
