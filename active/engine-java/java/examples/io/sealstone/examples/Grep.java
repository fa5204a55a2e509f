package io.sealstone.examples;

import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdObject;
import io.sealstone.function.OsdReader;
import java.io.IOException;
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
        byte[] part = new byte[Osd.BUFFER_BYTES];
        long lines = 0;
        for (OsdObject object : call.objects()) {
            try (OsdReader reader = osd.reader(object.handle())) {
                // Each part but the last one has whole lines, as 1 MiB is a multiple of 128. An array
                // is copied, and its loops are about twice as fast as those over a buffer.
                for (int length = fill(reader, part); length > 0; length = fill(reader, part)) {
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

    private static int fill(OsdReader reader, byte[] part) throws IOException {
        return reader.readNBytes(part, 0, part.length);
    }

    private static boolean contains(byte[] part, int start, int end, byte[] wanted) {
        byte first = wanted[0];
        for (int index = start; index <= end - wanted.length; index++) {
            if (part[index] != first) {
                continue;
            }
            int matched = 1;
            while (matched < wanted.length && part[index + matched] == wanted[matched]) {
                matched++;
            }
            if (matched == wanted.length) {
                return true;
            }
        }
        return false;
    }
}
