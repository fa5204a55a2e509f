import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdException;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdReader;
import io.sealstone.function.OsdWriter;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Behaviours that the tests select by method. */
public final class Behaviours implements OsdFunction {
    private static long count;
    private static final List<Object> KEPT = new ArrayList<>();

    static {
        System.out.println("loaded");
    }

    @Override
    public long run(Osd osd, Call call) throws Exception {
        return switch (call.method()) {
            case "" -> 0;
            case "count" -> ++count;
            case "raise" -> throw new IllegalStateException("bad value " + call.argument("key"));
            case "cause" -> throw new IllegalStateException("outer", new RuntimeException("inner"));
            case "exit" -> exit(0);
            case "halt" -> halt();
            case "missing" -> osd.read(9, 0, 1).length;
            case "print" -> print();
            case "wait" -> waitForCancel(osd);
            case "streams" -> streams(osd);
            case "threads" -> threads(osd);
            case "thread-dies" -> threadDies(call);
            case "memory" -> memory();
            case "keep-memory" -> keepMemory();
            case "half-memory" -> halfMemory();
            case "stack" -> recurse(0);
            case "spin" -> spin();
            case "many-threads" -> manyThreads();
            case "keep" -> keep(osd);
            case "kept" -> kept();
            case "resource" -> Behaviours.class.getResourceAsStream("/Behaviours.class").readAllBytes().length;
            default -> throw new OsdException(OsdException.NOT_FOUND);
        };
    }

    private static long exit(int code) {
        System.exit(code);
        return 0;
    }

    private static long halt() {
        Runtime.getRuntime().halt(7);
        return 0;
    }

    private static long print() {
        System.out.print("one\ntwo");
        System.err.print("three");
        return 0;
    }

    private static long waitForCancel(Osd osd) throws Exception {
        while (!osd.isCancelled()) {
            Thread.sleep(1);
        }
        return -125;
    }

    private static long streams(Osd osd) throws Exception {
        byte[] data = new byte[256 * 12289];
        for (int index = 0; index < data.length; index++) {
            data[index] = (byte) index;
        }
        try (OsdWriter writer = osd.writer(0, 0)) {
            for (int start = 0; start < data.length; start += 700001) {
                writer.write(data, start, Math.min(700001, data.length - start));
            }
        }
        check(osd.length(0) == data.length);
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        try (OsdReader reader = osd.reader(0)) {
            reader.transferTo(read);
        }
        check(Arrays.equals(read.toByteArray(), data));
        check(Arrays.equals(osd.read(0), data));
        for (int round = 0; round < 20; round++) {
            try (OsdReader reader = osd.reader(0)) {
                check(reader.next() != null);
            }
        }
        // The heap of the tests has buffers for two streams.
        osd.reader(0);
        osd.reader(0);
        try {
            osd.reader(0);
        } catch (OsdException error) {
            return error.errno();
        }
        return 0;
    }

    private static long threads(Osd osd) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Callable<Integer>> tasks = new ArrayList<>();
        for (int task = 0; task < 64; task++) {
            tasks.add(() -> osd.read(0).length);
        }
        int sum = 0;
        for (Future<Integer> done : pool.invokeAll(tasks)) {
            sum += done.get();
        }
        pool.shutdown();
        return sum;
    }

    private static long threadDies(Call call) throws Exception {
        Thread thread = new Thread(() -> {
            throw new IllegalStateException("bad value " + call.argument("key"));
        });
        thread.start();
        thread.join();
        return 0;
    }

    private static long memory() {
        List<byte[]> kept = new ArrayList<>();
        while (true) {
            kept.add(new byte[1 << 20]);
        }
    }

    private static long keepMemory() {
        while (true) {
            KEPT.add(new byte[1 << 20]);
        }
    }

    private static long halfMemory() {
        List<byte[]> kept = new ArrayList<>();
        long blocks = Runtime.getRuntime().maxMemory() / 2 >> 20;
        for (long block = 0; block < blocks; block++) {
            kept.add(new byte[1 << 20]);
        }
        return kept.size() == blocks ? 0 : 1;
    }

    private static long recurse(long depth) {
        return recurse(depth + 1) + 1;
    }

    private static long spin() {
        long value = 1;
        while (value != 0) {
            value = value * 31 | 1;
        }
        return value;
    }

    private static long manyThreads() throws Exception {
        Object lock = new Object();
        int started = 0;
        try {
            for (; started < 1000; started++) {
                Thread thread = new Thread(() -> {
                    synchronized (lock) {
                        try {
                            lock.wait();
                        } catch (InterruptedException error) {
                            return;
                        }
                    }
                });
                thread.setDaemon(true);
                thread.start();
            }
        } catch (OutOfMemoryError error) {
            return started > 10 && started < 64 ? 0 : started;
        }
        return -1;
    }

    private static long keep(Osd osd) throws Exception {
        OsdReader reader = osd.reader(0);
        reader.read();
        KEPT.addAll(List.of(osd, reader, osd.writer(0, 0)));
        return 0;
    }

    private static long kept() throws Exception {
        Osd osd = (Osd) KEPT.get(0);
        OsdWriter writer = (OsdWriter) KEPT.get(2);
        writer.write(1);
        try {
            writer.close();
            return 1;
        } catch (OsdException error) {
            check(error.errno() == OsdException.BAD_HANDLE);
        }
        return osd.length(0);
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new AssertionError();
        }
    }
}
