import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.FileChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Attempts to leave the sandbox; the tests select one by method. */
public final class Escapes implements OsdFunction {
    @Override
    public long run(Osd osd, Call call) throws Exception {
        switch (call.method()) {
            case "passwd" -> new FileInputStream("/etc/passwd").close();
            case "passwd-up" -> Files.readAllBytes(Path.of("/../../../etc/passwd"));
            case "proc" -> Files.readString(Path.of("/proc/self/maps"));
            case "write-file" -> new FileOutputStream("/evil").close();
            case "write-code" -> new FileOutputStream("/fn.jar").close();
            case "write-java" -> new FileOutputStream(System.getProperty("java.home") + "/evil").close();
            case "temporary" -> Files.createTempFile("x", "y");
            case "map-file" -> FileChannel.open(Path.of("/fn.jar"), StandardOpenOption.READ, StandardOpenOption.WRITE);
            case "remove" -> Files.delete(Path.of("/fn.jar"));
            case "mkdir" -> Files.createDirectory(Path.of("/evil"));
            case "link" -> Files.createSymbolicLink(Path.of("/evil"), Path.of("/etc"));
            case "connect" -> new Socket("127.0.0.1", 1).close();
            case "listen" -> new ServerSocket(0).close();
            case "channel" -> SocketChannel.open(new InetSocketAddress("127.0.0.1", 1)).close();
            case "exec" -> Runtime.getRuntime().exec(new String[] {"/bin/sh"});
            case "builder" -> new ProcessBuilder("/bin/sh").start();
            case "kill" -> ProcessHandle.of(1).ifPresent(ProcessHandle::destroyForcibly);
            case "library" -> System.load("/evil.so");
            case "library-name" -> System.loadLibrary("evil");
            case "poke" -> unsafe("putLong").invoke(instance(), 8L, 1L);
            case "peek" -> unsafe("getLong").invoke(instance(), 0x7fff_0000_0000L);
            case "host-null" -> hostNull();
            case "loader" -> Class.forName("io.sealstone.function.EngineHost").getDeclaredConstructors();
            default -> throw new IllegalArgumentException(call.method());
        }
        return 0;
    }

    private static Object instance() throws Exception {
        Field field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return field.get(null);
    }

    private static Method unsafe(String name) throws Exception {
        Class<?> type = Class.forName("sun.misc.Unsafe");
        return name.startsWith("put")
                ? type.getMethod(name, long.class, long.class)
                : type.getMethod(name, long.class);
    }

    private static Object host(String name, Class<?>[] types, Object... values) throws Exception {
        Class<?> type = Class.forName("io.sealstone.function.EngineHost");
        var constructor = type.getDeclaredConstructor();
        constructor.setAccessible(true);
        Method method = type.getDeclaredMethod(name, types);
        method.setAccessible(true);
        return method.invoke(constructor.newInstance(), values);
    }

    /** Calls native methods with wrong arguments; each returns an error number. */
    private static void hostNull() throws Exception {
        Class<?>[] read = {int.class, long.class, byte[].class, int.class, int.class};
        expect(-22L, host("read", read, 0, 0L, null, 0, 1));
        expect(-22L, host("read", read, 0, 0L, new byte[4], 2, 3));
        expect(-22L, host("read", read, 0, 0L, new byte[4], Integer.MAX_VALUE, Integer.MAX_VALUE));
        expect(-22L, host("write", read, 0, -1L, new byte[4], 0, 4));
        expect(-22L, host("setAttribute", new Class<?>[] {int.class, int.class, int.class, byte[].class}, 0, 0, 0, null));
        expect(-22L, host("log", new Class<?>[] {int.class, byte[].class}, 3, null));
        expect(0L, host("list", new Class<?>[] {int.class, long.class, long[].class}, 0, 0L, null));
        expect(null, host("readNext", new Class<?>[] {long.class, long[].class}, -1L, null));
        expect(-22L, host("writeNext", new Class<?>[] {long.class, byte[].class, int.class, int.class}, 0L, null, 0, 0));
        expect(-9L, host("closeStream", new Class<?>[] {long.class, boolean.class}, 99L, true));
        expect(null, host("entry", new Class<?>[] {String.class}, (Object) null));
        expect(null, host("entry", new Class<?>[] {String.class}, "x".repeat(100_000)));
    }

    private static void expect(Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError(expected + " expected, not " + found);
        }
    }
}
