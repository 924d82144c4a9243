/* What a librdkafka producer with a transactional id gets: see franz/main.go. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static long milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int main(int count, char **args) {
    char why[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (count != 3 || rd_kafka_conf_set(conf, "bootstrap.servers", args[1], why, sizeof why) ||
        rd_kafka_conf_set(conf, "transactional.id", "transactional-librdkafka", why, sizeof why))
        return 2;
    rd_kafka_t *kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    if (!kafka)
        return 2;
    long began = milliseconds();
    rd_kafka_error_t *error = rd_kafka_init_transactions(kafka, 25000);
    if (!error)
        puts("accepted");
    else if (rd_kafka_error_code(error) == RD_KAFKA_RESP_ERR__TIMED_OUT || rd_kafka_error_is_retriable(error))
        puts("hangs");
    else
        printf("refused %ld %s\n", milliseconds() - began, rd_kafka_error_string(error));
    fflush(stdout);
    _exit(0);
}
