package io.sealstone.examples;

import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdReader;
import io.sealstone.function.OsdWriter;

/** Copies the first object to the second one. */
public final class CopyObject implements OsdFunction {
    @Override
    public long run(Osd osd, Call call) throws Exception {
        if (call.objects().length != 2) {
            throw new IllegalArgumentException("a copy has two objects: source and target");
        }
        byte[] buffer = new byte[Osd.BUFFER_BYTES];
        try (OsdReader reader = osd.reader(0);
                OsdWriter writer = osd.writer(1, 0)) {
            for (int count = reader.read(buffer); count >= 0; count = reader.read(buffer)) {
                writer.write(buffer, 0, count);
            }
        }
        return 0;
    }
}
