// Kafka Streams' share of `python -m bench table-loop` and `outputs`: get and put of every record of a topic in a
// key-value store with its changelog. WHAT is `topic`, or `send=TARGET`: each value goes to another topic, too. STORE is
// `rocksdb` or `memory`, GUARANTEE the name of a processing guarantee. Prints the seconds, on the clock and of the
// processors, from the record number `warm` to the last one.
//
//     java -cp 'jars/*' StreamsLoop.java BOOTSTRAP TOPIC RECORDS WARM DIRECTORY WHAT STORE GUARANTEE

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class StreamsLoop {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final AtomicLong seen = new AtomicLong();
    private static final CountDownLatch done = new CountDownLatch(1);
    private static volatile long startedNs, startedCpuNs, wallNs, cpuNs;
    private static long records, warm;
    private static boolean sends;

    private static final class Loop implements Processor<byte[], byte[], byte[], byte[]> {
        private KeyValueStore<byte[], byte[]> store;
        private ProcessorContext<byte[], byte[]> context;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            store = context.getStateStore("state");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            store.get(record.key());
            store.put(record.key(), record.value());
            if (sends) {
                context.forward(record);
            }
            long now = seen.incrementAndGet();
            if (now == warm) {
                startedCpuNs = SYSTEM.getProcessCpuTime();
                startedNs = System.nanoTime();
            } else if (now == records) {
                wallNs = System.nanoTime() - startedNs;
                cpuNs = SYSTEM.getProcessCpuTime() - startedCpuNs;
                done.countDown();
            }
        }
    }

    public static void main(String[] args) throws Exception {
        records = Long.parseLong(args[2]);
        warm = Long.parseLong(args[3]);
        sends = args[5].startsWith("send=");
        Topology topology = new Topology();
        topology.addSource("source", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), args[1]);
        topology.addProcessor("loop", Loop::new, "source");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(
                                args[6].equals("memory")
                                        ? Stores.inMemoryKeyValueStore("state")
                                        : Stores.persistentKeyValueStore("state"),
                                Serdes.ByteArray(), Serdes.ByteArray())
                        .withCachingEnabled(),  // As the DSL has it: the changelog gets the last value of a key.
                "loop");
        if (sends) {
            topology.addSink(
                    "target", args[5].substring("send=".length()), Serdes.ByteArray().serializer(),
                    Serdes.ByteArray().serializer(), "loop");
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1] + "-" + args[6] + "-" + args[7]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[7]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64L << 20);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 5000);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 << 10);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        try (KafkaStreams streams = new KafkaStreams(topology, settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
                return null;
            });
            streams.start();
            done.await();
            System.out.printf("{\"wall_s\": %.6f, \"cpu_s\": %.6f}%n", wallNs / 1e9, cpuNs / 1e9);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }
}
