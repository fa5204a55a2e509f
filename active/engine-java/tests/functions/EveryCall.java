import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdException;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdObject;
import io.sealstone.function.OsdReader;
import io.sealstone.function.OsdWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/** Uses every call of the interface. */
public final class EveryCall implements OsdFunction {
    private interface Attempt {
        void run() throws Exception;
    }

    private static void check(boolean holds, Object shown) {
        if (!holds) {
            throw new AssertionError(shown);
        }
    }

    private static void fails(int errno, Attempt attempt) throws Exception {
        try {
            attempt.run();
        } catch (OsdException error) {
            check(error.errno() == errno, error);
            return;
        }
        throw new AssertionError("no error " + errno);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    @Override
    public long run(Osd osd, Call call) throws Exception {
        check(call.method().equals("every") && call.arguments().equals(Map.of("a", "1")), call.arguments());
        check(call.timeoutMs() == 1000 && call.resultBytesMax() == 1 << 20, call.timeoutMs());
        check(text(call.argumentBytes()).equals("a=1\0"), call.argumentBytes().length);
        OsdObject first = call.objects()[0];
        check(first.length() == 5 && first.kind().equals("user") && first.handle() == 0, first);
        check(first.permits(OsdObject.READ) && first.partition() == 0x10000 && first.number() == 0x10000, first);
        check(text(osd.read(0, 1, 3)).equals("ell") && text(osd.read(0)).equals("hello"), "read");
        check(osd.read(0, 9, 4).length == 0, "read beyond the end");
        osd.write(1, 0, bytes("abcdef"));
        osd.punch(1, 0, 1);
        check(osd.append(1, bytes(" end")) == 5, "append");
        check(osd.length(1) == 9, "length");
        osd.setAttribute(0, 0x10000, 7, bytes("value"));
        check(text(osd.attribute(0, 0x10000, 7)).equals("value"), "attribute");
        check(osd.attribute(0, 0x10000, 8) == null, "no attribute");
        check(Arrays.equals(osd.list(0, 0), new long[] {0x10000, 0x10001}), "list");
        OsdObject created = osd.create(0);
        check(created.handle() == 2 && created.number() == 0x10002, created);
        osd.remove(2);
        osd.flush(0);
        osd.clear(0, 5, 2);
        check(text(osd.read(0)).equals("hello\0\0"), "clear");
        osd.punch(0, 5, 2);
        collections(osd);
        osd.progress(1, 2);
        check(!osd.isCancelled() && osd.clock() > 0, osd.clock());
        streams(osd);
        errors(osd);
        osd.log("checked\nlines");
        osd.result("a");
        osd.result(bytes("ll"));
        return 0;
    }

    private static void collections(Osd osd) throws Exception {
        OsdObject collection = osd.createCollection(0);
        int handle = collection.handle();
        check(collection.kind().equals("collection") && !osd.isMember(handle, 1), collection);
        osd.addMember(handle, 1);
        check(osd.isMember(handle, 1) && Arrays.equals(osd.list(handle, 0), new long[] {0x10001}), "member");
        fails(OsdException.NOT_EMPTY, () -> osd.removeCollection(handle, false));
        osd.removeMember(handle, 1);
        fails(OsdException.NOT_FOUND, () -> osd.removeMember(handle, 1));
        fails(OsdException.INVALID, () -> osd.addMember(1, 0));
        osd.addMember(handle, 1);
        osd.removeCollection(handle, true);
        fails(OsdException.NOT_FOUND, () -> osd.isMember(handle, 1));
        fails(OsdException.INVALID, () -> osd.clear(0, -1, 1));
    }

    private static void streams(Osd osd) throws Exception {
        try (OsdReader reader = osd.reader(0)) {
            check(reader.read() == 'h', "first byte");
            ByteBuffer rest = reader.next();
            check(rest.remaining() == 4 && rest.isReadOnly() && rest.get(0) == 'e', rest);
            check(reader.next() == null && reader.read() == -1, "the end");
        }
        try (OsdReader reader = osd.reader(0, 1, 2)) {
            check(text(reader.readAllBytes()).equals("el"), "a range");
        }
        OsdObject lines = osd.create(0);
        try (OsdWriter writer = osd.writer(lines.handle(), 0)) {
            writer.write(bytes("one\n\nthree"));
        }
        try (OsdReader reader = osd.reader(lines.handle())) {
            check(text(reader.line(9)).equals("one") && text(reader.line(9)).isEmpty(), "lines");
            check(text(reader.line(9)).equals("three") && reader.line(9) == null, "the last line");
        }
        try (OsdReader reader = osd.reader(lines.handle())) {
            fails(OsdException.TOO_LARGE, () -> reader.line(2));
        }
        osd.remove(lines.handle());
    }

    private static void errors(Osd osd) throws Exception {
        fails(OsdException.BAD_HANDLE, () -> osd.read(7, 0, 1));
        fails(OsdException.BAD_HANDLE, () -> osd.read(-1, 0, 1));
        fails(OsdException.INVALID, () -> osd.read(0, -1, 1));
        fails(OsdException.TOO_LARGE, () -> osd.read(0, 0, Osd.READ_BYTES_MAX + 1));
        fails(OsdException.TOO_LARGE, () -> osd.append(1, new byte[(4 << 20) + 1]));
        fails(OsdException.INVALID, () -> osd.log(4, "text"));
        fails(OsdException.TOO_LARGE, () -> osd.setAttribute(0, 0, 1, new byte[65535]));
    }
}
