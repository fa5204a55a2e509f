package io.sealstone.examples;

import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdObject;
import io.sealstone.function.OsdReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** Counts the lines of 128 bytes that contain a text, as the paper's function does. */
public final class Grep implements OsdFunction {
    private static final int LINE_BYTES = 128;

    @Override
    public long run(Osd osd, Call call) throws Exception {
        String text = call.argument("text");
        if (text == null || text.isEmpty() || text.length() > LINE_BYTES) {
            throw new IllegalArgumentException("text has 1 to " + LINE_BYTES + " bytes");
        }
        byte[] wanted = text.getBytes(StandardCharsets.UTF_8);
        long lines = 0;
        for (OsdObject object : call.objects()) {
            try (OsdReader reader = osd.reader(object.handle())) {
                // Each part but the last one has whole lines, as 1 MiB is a multiple of 128.
                for (ByteBuffer part = reader.next(); part != null; part = reader.next()) {
                    int length = part.limit();
                    for (int start = 0; start < length; start += LINE_BYTES) {
                        if (contains(part, start, Math.min(start + LINE_BYTES, length), wanted)) {
                            lines++;
                        }
                    }
                }
            }
        }
        osd.result(lines + "\n");
        return 0;
    }

    private static boolean contains(ByteBuffer part, int start, int end, byte[] wanted) {
        int last = end - wanted.length + 1;
        int index = find(part, start, last, wanted);
        while (index < last && !isAt(part, index, wanted)) {
            index = find(part, index + 1, last, wanted);
        }
        return index < last;
    }

    /**
     * Returns the index of the first two bytes of a text, or the end. The virtual machine compiles
     * a loop best that has no other loop in it, and that seldom ends early.
     */
    private static int find(ByteBuffer part, int start, int end, byte[] wanted) {
        int next = wanted.length > 1 ? 1 : 0;
        byte first = wanted[0];
        byte second = wanted[next];
        for (int index = start; index < end; index++) {
            if (part.get(index) == first && part.get(index + next) == second) {
                return index;
            }
        }
        return end;
    }

    private static boolean isAt(ByteBuffer part, int start, byte[] wanted) {
        for (int index = 1; index < wanted.length; index++) {
            if (part.get(start + index) != wanted[index]) {
                return false;
            }
        }
        return true;
    }
}
